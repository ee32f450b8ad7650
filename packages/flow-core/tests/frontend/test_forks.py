"""Forked processes: using objects of the parent raises a typed error at once, without hanging."""

import contextlib
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session.session import default_session

X = np.ones(4, np.float32)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


class Program:
    """Two jobs that have run, the second asynchronously with a step blocked in its callback.

    Attributes:
        pending: the call whose callback has not returned.
        delivered: the arguments that its callbacks received.
    """

    def __init__(self) -> None:
        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
            w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
            return x + w

        @flow.global_function()
        def later(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
            return x * 2.0

        @flow.global_function()
        def untyped(x: tp.Numpy.Placeholder((4,))):
            return x * 3.0

        self.job, self.later, self.untyped = job, later, untyped
        self.delivered: list[Any] = []
        self._entered, self._go_on = threading.Event(), threading.Event()
        job(X)
        self.done = untyped(X)
        self.done.get()
        self.pending = later(X)
        self.pending(self._hold)
        self.waiting = untyped(X)
        assert self._entered.wait(processes.scaled(30))

    def _hold(self, result: Any) -> None:
        self._entered.set()
        assert self._go_on.wait(processes.scaled(60))
        self.delivered.append(result)

    def end(self) -> None:
        """Unblock the callback."""
        self._go_on.set()
        flow.sync_default_session()


@pytest.fixture
def program() -> Iterator[Program]:
    flow.clear_default_session()
    made = Program()
    yield made
    made.end()
    assert len(made.delivered) == 1  # in the calling process
    flow.clear_default_session()


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    """Suppress the warning of Python 3.12 about forks of multithreaded processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def in_fork(action: Callable[[], Any]) -> str:
    """Return the result or error of an action in a forked process, killed on a hang."""
    read_end, write_end = os.pipe()
    with no_warning():
        child = os.fork()
    if child == 0:
        try:
            said = f"gave {action()!r}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_end, said.encode()[:60_000])
        os._exit(0)
    os.close(write_end)
    try:
        readable = select.select([read_end], [], [], processes.scaled(5))[0]
        return os.read(read_end, 1 << 16).decode() if readable else "hangs"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_end)


def define(program: Program) -> object:
    @flow.global_function()
    def another(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x

    return another(X)


REFUSED: dict[str, Callable[[Program], object]] = {
    "call": lambda program: program.job(X),
    "asynchronous call": lambda program: program.later(X),
    "a callback": lambda program: program.waiting(print),
    "a result": lambda program: program.waiting.get(),
    "an array": lambda program: program.waiting.numpy(),
    "sync": lambda program: flow.sync_default_session(),
    "clear": lambda program: flow.clear_default_session(),
    "another job": define,
    "variables": lambda program: flow.get_all_variables(),
    "assignment": lambda program: flow.load_variables({"w": X}),
    "save": lambda program: flow.checkpoint.save("nowhere"),
    "settings": lambda program: flow.config.cpu_device_num(2),
}


@pytest.mark.parametrize("what", REFUSED)
def test_objects_of_the_parent_are_rejected(program: Program, what: str) -> None:
    said = in_fork(lambda: REFUSED[what](program))
    assert said.startswith("ForkError: "), said
    assert f"{__file__}:" in said
    assert f"a fork of process {os.getpid()}" in said
    assert 'multiprocessing.get_context("spawn")' in said
    assert not Path("nowhere").exists()


def test_objects_of_the_parent_are_rejected_in_grandchildren(program: Program) -> None:
    assert "ForkError" in in_fork(lambda: in_fork(lambda: program.job(X)))


def test_available_results_are_copied(program: Program) -> None:
    assert in_fork(lambda: program.done.get().numpy().tolist()) == "gave [3.0, 3.0, 3.0, 3.0]"


def test_locks_held_by_other_threads_do_not_block(program: Program) -> None:
    """They stay locked in the child, so the child must not wait for them."""
    pipeline, held, free = default_session().pipeline, threading.Event(), threading.Event()

    def hold() -> None:
        with pipeline._changes.lock, default_session().compiling:
            held.set()
            free.wait(processes.scaled(60))

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(processes.scaled(60))
    said = [in_fork(partial(act, program)) for act in REFUSED.values()]
    free.set()
    thread.join()
    assert all(text.startswith("ForkError: ") for text in said), said


def end_of(folder: Path, text: str, *arguments: str) -> processes.Completed[str]:
    """Return the end of a program that runs in a new interpreter.

    Libraries loaded by other tests, such as onnxruntime, wait for the parent's threads when a child
    exits.
    """
    script = folder / "forking.py"
    script.write_text(text)
    return processes.run([sys.executable, "-W", "ignore", str(script), *arguments])


POOL = """
import multiprocessing, threading
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
    return x * 2.0

def products(size):
    return float((np.ones((size, size)) @ np.ones((size, size))).sum())

entered, go_on = threading.Event(), threading.Event()
job(np.ones(4, np.float32))(lambda _: (entered.set(), go_on.wait()))
entered.wait()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(products, [100, 200]))
go_on.set()
"""


def test_workers_that_only_use_numpy(tmp_path: Path) -> None:
    """They are forked while a step is blocked in its callback."""
    ended = end_of(tmp_path, POOL)
    assert (ended.returncode, ended.stdout) == (0, "[1000000.0, 8000000.0]\n"), ended.stderr


FORK_IN_CALLBACK = """
import os, time
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
    return x * 2.0

forks, delivered, parent = [], [], os.getpid()
x = np.ones(4, np.float32)
job(x)(lambda _: forks.append(os.fork()))
job(x)(lambda _: delivered.append(0) if os.getpid() == parent else time.sleep(1000))
flow.sync_default_session()
print(os.waitstatus_to_exitcode(os.waitpid(forks[0], 0)[1]), len(delivered))
"""


def test_fork_in_a_callback_delivers_only_once(tmp_path: Path) -> None:
    """The child consists of the callback thread, which ends."""
    ended = end_of(tmp_path, FORK_IN_CALLBACK)
    assert (ended.returncode, ended.stdout.split()) == (0, ["0", "1"]), ended.stderr


ENDING = """
import os, sys, time
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
    return x * 2.0

def say(x):
    if os.getpid() != parent:
        os.write(1, b"in the child")
    time.sleep(0.05)

x, parent = np.ones(4, np.float32), os.getpid()
if sys.argv[1] == "unused":
    child = os.fork()
    job(x)(lambda x: os.write(1, f"called {x[0]}\\n".encode()))  # one write in two processes
else:
    for _ in range(4):
        job(x)(say)
    child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit(7)
"""


@pytest.mark.representative(
    r"\[unused-", "a child with a session of its own, whose threads have to end"
)
@pytest.mark.parametrize(("how", "said"), [("pending", "7"), ("unused", "called called 7 2.0 2.0")])
def test_child_exits_normally(tmp_path: Path, how: str, said: str) -> None:
    """Exit handlers of the child wait for no thread of the parent.

    A child forked before the first use of flow has its own session.
    """
    ended = end_of(tmp_path, ENDING, how)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split()) == sorted(said.split())
    assert not ended.stderr
