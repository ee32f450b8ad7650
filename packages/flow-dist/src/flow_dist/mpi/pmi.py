"""MPI between processes that no MPI launcher has started, but torchrun, Ray or Slurm, for example.

MPICH obtains its rank and exchanges addresses with the other ranks over PMI version 1, a protocol
of text lines on a file descriptor.  Here, a thread of the process itself is the PMI server, which
forwards barriers over the control channel.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from flow_core.base.errors import install_command
from flow_dist.bootstrap.engines import MPI_VARIABLES
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.control.client import ControlClient
from flow_dist.control.wire import random_token

_VALUE = 1024
_MAXES = f"maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max={_VALUE}"
"""Maximum lengths of names and values, equal to the limits of MPICH's own launcher."""

_ENDED = b"cmd=finalize_ack rc=0\n"
"""The last reply, sent in advance, because no Python thread runs any more when MPICH finalizes."""

Exchange = Callable[[str, dict[str, str]], Sequence[Mapping[str, str]]]
"""A function that all-gathers the values that the ranks pass under a name."""


def joined_by_launcher(env: Mapping[str, str] | None = None) -> bool:
    """Return whether the launcher provides all that MPI needs."""
    env = os.environ if env is None else env
    return any(env.get(name) for name in MPI_VARIABLES)


def start_mpi(client: ControlClient) -> Any:
    """Initialize MPI for the ranks of a control channel; return ``mpi4py.MPI``.

    MPI is finalized when the process ends, before its goodbye on the control channel.  Raises
    `LaunchError` if the MPI library does not derive from MPICH, has been initialized before, or
    cannot reach the other ranks.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    _check_library(MPI)
    own, hosts = client.membership, client.start()
    client_end, server_end = socket.socketpair()
    name = client.gather("name of MPI's world", random_token()[:16])[0]
    service = Service(own.size, name, process_mapping(hosts), client.gather)
    thread = threading.Thread(
        target=service.serve, args=(server_end,), name="flow-pmi", daemon=True
    )
    thread.start()
    env = {"PMI_FD": client_end.detach(), "PMI_RANK": own.rank, "PMI_SIZE": own.size}
    os.environ.update({name: str(value) for name, value in env.items()})
    try:
        library = ctypes.CDLL(MPI.__file__)  # releases the interpreter lock; mpi4py holds it
        _call(library.MPI_Init_thread, None, None, int(MPI.THREAD_MULTIPLE), ctypes.c_int())
    finally:
        for name in env:  # child processes of this program must not inherit them
            del os.environ[name]

    def end() -> None:
        _call(library.MPI_Finalize)
        server_end.sendall(_ENDED)

    client.at_end(end)
    return MPI


def _check_library(mpi: Any) -> None:
    version = mpi.Get_library_version().strip("\0 \n").splitlines()[0]
    if mpi.Is_initialized() or not version.startswith(("MPICH", "Intel", "MVAPICH")):
        raise LaunchError(
            "joining by MPI processes that no MPI launcher has started",
            found=f"{version}, initialized before" if mpi.Is_initialized() else version,
            allowed="MPICH, initialized by flow; Open MPI needs processes that its mpiexec started",
            hint=f"{install_command('flow-dist[mpich]')}, "
            "or start the processes with flow-dist run",
        )


def _call(function: Any, *args: Any) -> None:
    status = function(*(ctypes.byref(a) if isinstance(a, ctypes.c_int) else a for a in args))
    if status:
        raise LaunchError(f"calling {function.__name__}", found=f"MPI error {status}")


def process_mapping(hosts: Sequence[str]) -> str:
    """Encode which ranks share a host, like MPICH: tuples (first host, hosts, ranks per host).

    >>> process_mapping(["a", "a", "b", "a"])
    '(vector,(0,1,2),(1,1,1),(0,1,1))'
    """
    numbers: dict[str, int] = {}
    blocks: list[list[int]] = []
    for host in hosts:
        number = numbers.setdefault(host, len(numbers))
        if blocks and blocks[-1][0] == number:
            blocks[-1][2] += 1
        else:
            blocks.append([number, 1, 1])
    return f"(vector,{','.join(f'({a},{b},{c})' for a, b, c in blocks)})"


class Service:
    """The PMI server of one rank.

    Args:
        name: distinguishes the shared memory of these ranks from other jobs' on the same host.
        exchange: called by all ranks at a barrier, with the values put since the previous barrier.

    >>> service = Service(1, "job", "", lambda name, values: [values])
    >>> service.answer("cmd=put kvsname=job key=k value=v")
    'cmd=put_result rc=0'
    >>> service.answer("cmd=barrier_in")
    'cmd=barrier_out rc=0'
    >>> service.answer("cmd=get kvsname=job key=k")
    'cmd=get_result rc=0 value=v'
    """

    def __init__(self, size: int, name: str, mapping: str, exchange: Exchange) -> None:
        self._exchange = exchange
        self._known = {"PMI_process_mapping": mapping} if 0 < len(mapping) < _VALUE else {}
        self._new: dict[str, str] = {}
        self._barriers = count()
        self._answers: dict[str, Callable[[Mapping[str, str]], str]] = {
            "init": lambda _: "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": lambda _: _MAXES,
            "get_appnum": lambda _: "appnum rc=0 appnum=0",
            "get_my_kvsname": lambda _: f"my_kvsname rc=0 kvsname={name}",
            "get_universe_size": lambda _: f"universe_size rc=0 size={size}",
            "put": self._put,
            "get": self._get,
            "barrier_in": self._barrier,
        }

    def serve(self, connection: socket.socket) -> None:
        """Answer requests until MPI is finalized or an exchange fails."""
        with connection, connection.makefile("rb") as stream:
            for line in stream:
                answer = self.answer(line.decode().strip())
                connection.sendall(f"{answer}\n".encode())

    def answer(self, line: str) -> str:
        words = dict(word.partition("=")[::2] for word in line.split())
        handler = self._answers.get(words.get("cmd", ""))
        return f"cmd={handler(words)}" if handler else f"cmd={words.get('cmd')}_result rc=-1"

    def _put(self, words: Mapping[str, str]) -> str:
        self._new[words["key"]] = words["value"]
        return "put_result rc=0"

    def _get(self, words: Mapping[str, str]) -> str:
        value = self._known.get(words["key"])
        return (
            "get_result rc=-1 msg=key_not_found"
            if value is None
            else f"get_result rc=0 value={value}"
        )

    def _barrier(self, words: Mapping[str, str]) -> str:
        new, self._new = self._new, {}
        for values in self._exchange(f"addresses of MPI {next(self._barriers)}", new):
            self._known.update(values)
        return "barrier_out rc=0"
