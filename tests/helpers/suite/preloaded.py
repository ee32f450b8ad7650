"""Run Python programs as forks of an interpreter that has imported the packages.

A start with the packages takes half a second of processor time, a fork a few milliseconds.  This
suits tests of what many programs print; tests of starts, imports and ends run them anew.

``preloaded.py serve ADDRESS`` is the interpreter; ``preloaded.py run ADDRESS ...`` stands for
``python ...``: it passes arguments, environment, folder, streams and the connection to MPICH's
launcher on, and waits.  A fork that loses the process that waits for it is killed with its process
group.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

SAMPLE = """
import doctest, flow_core.cli.app, flow_core.cli.job_ops, numpy, pytest
import oneflow as flow, oneflow.typing as tp

@flow.global_function(type="train")
def job(x: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
    loss = flow.layers.dense(x, 2, kernel_initializer=flow.ones_initializer())
    flow.optimizer.SGD(0.1).minimize(loss)
    return loss

job(numpy.ones((2, 2), numpy.float32))
"""
"""A program that imports what most programs do."""
SETTINGS = {
    "FLOW_DISABLE_PLUGINS": "flow-onednn",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The environment variables of the interpreter; forks have those of their requests."""

LONGEST = 1 << 17
"""The largest number of bytes of a request."""


def command(address: str, *words: str) -> list[str]:
    """Return a command that runs ``python`` and the words in a fork."""
    fork = ("-IS", __file__, "run", address) if address else ()
    return [sys.executable, *fork, *words]


class Interpreter:
    """A context whose value is the address of an interpreter that has imported the packages.

    The address is empty where there is none: programs then start anew.

    Attributes:
        pid: its process.
    """

    pid = 0

    def __enter__(self) -> str:
        import processes

        if sys.platform != "linux":
            return ""
        address = f"flow-preloaded-{os.urandom(8).hex()}"
        serve = [sys.executable, __file__, "serve", address]
        pipe = {"stdin": processes.PIPE, "stderr": None}  # the end of its input ends it
        self._program = processes.Program(serve, env=os.environ | SETTINGS, **pipe)
        self.pid = self._program.pid
        assert self._program.stdout.readline() == "ready\n", "the interpreter did not start"
        return address

    def __exit__(self, *exception: object) -> None:
        if sys.platform == "linux":
            self._program.__exit__(None, None, None)


# ------------------------------------------------------------------------------ the interpreter


def serve(address: str) -> Callable[[], None]:
    """Import modules and fork for each request; return in forks, what they run."""
    import contextlib
    import gc
    import importlib

    for name in modules_of(SAMPLE):
        with contextlib.suppress(ImportError):  # of modules that others replace by themselves
            importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forks here
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind("\0" + address)
        server.listen()
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([server, sys.stdin], [], [])[0]:
                os._exit(0)
            connection, _ = server.accept()
            if not os.fork():
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams, _, _ = socket.recv_fds(connection, LONGEST, 4)
    pid = os.fork()
    if pid:
        watch(connection, pid)
    connection.close()
    return program(streams=streams, **json.loads(request))


def modules_of(code: str) -> list[str]:
    """Return the modules that a program imports."""
    receiver, sender = os.pipe()
    if not os.fork():
        exec(code, {"__name__": "__main__"})
        with open(sender, "w") as file:
            file.write("\n".join(sys.modules))
        os._exit(0)
    os.close(sender)
    with open(receiver) as file:
        return file.read().split("\n")


def watch(connection: socket.socket, pid: int) -> None:
    """Send the status of a fork to where it was asked for, and kill it if nothing waits there."""
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def program(
    words: list[str], cwd: str, env: dict[str, str], streams: list[int]
) -> Callable[[], None]:
    """Make this process one that was started with these arguments; return what it runs."""
    import runpy

    os.setsid()
    for number, descriptor in enumerate(streams[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if streams[3:]:
        os.environ["PMI_FD"] = str(streams[3])
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[:1] = [cwd, *paths]
        return lambda: runpy.run_module(words[1], run_name="__main__", alter_sys=True) and None
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:1] = ["", *paths]
        return lambda: exec(words[1], vars(sys.modules["__main__"]))
    sys.argv = words
    sys.path[:1] = [os.path.dirname(os.path.abspath(words[0])), *paths]
    return lambda: runpy.run_path(words[0], run_name="__main__") and None


# ------------------------------------------------------------------- what stands for ``python``


def run(address: str, *words: str) -> int:
    """Run a program in a fork of the interpreter at an address; return its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + address)
        request = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
        descriptors = [0, 1, 2, *map(int, filter(None, [os.environ.get("PMI_FD")]))]
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        status = int(connection.recv(LONGEST) or -signal.SIGKILL)
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(*sys.argv[2:]))
    serve(sys.argv[2])()
