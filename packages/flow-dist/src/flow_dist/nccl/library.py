"""NCCL's library as a Protocol of ours, over nccl4py, or CuPy's binding where that is not there."""

from __future__ import annotations

import ctypes.util
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any, Protocol

from flow_core.authoring.specs import Available, Unavailable
from flow_core.base.errors import FlowError
from flow_dist.bootstrap.membership import LaunchError

SUCCESS, INVALID_USAGE, IN_PROGRESS = 0, 5, 7

ALL_TO_ALL = 22800
"""The first version whose library has an all-to-all."""

OLDEST = 21800
"""The first version that this package works with."""

ID_BYTES = 128

PRIMITIVES: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("send", "receive", "count", "dtype", "op"),
    "reduce_scatter": ("send", "receive", "count", "dtype", "op"),
    "reduce": ("send", "receive", "count", "dtype", "op", "root"),
    "broadcast": ("send", "receive", "count", "dtype", "root"),
    "all_gather": ("send", "receive", "count", "dtype"),
    "all_to_all": ("send", "receive", "count", "dtype"),
    "send": ("send", "count", "dtype", "peer"),
    "receive": ("receive", "count", "dtype", "peer"),
}
"""The arguments of each primitive, before the stream.

Buffers and streams are integers, counts are in elements: of a part for `reduce_scatter`, of what
one rank gives for `all_gather`, of what it gives each rank for `all_to_all`.
"""

Primitive = Callable[..., object]


class NcclStatus(FlowError):
    """A call of NCCL's has failed.

    Attributes:
        code: NCCL's result.
        text: what NCCL says.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__("calling NCCL", found=f"{text} ({code})")
        self.code, self.text = code, text


class Library(Protocol):
    """What the comm needs of NCCL.  Communicators are objects of the library's own.

    Attributes:
        name: of the binding, with its version.
        version: NCCL's, such as 22803 for 2.28.3.
        error: what its calls raise; it has NCCL's result as ``status``.
    """

    name: str
    version: int
    error: type[Exception]

    def unique_id(self) -> bytes:
        """128 bytes by which the ranks of a new communicator find each other."""

    def join(self, size: int, unique_id: bytes, rank: int) -> Any:
        """The device's end of a new communicator; waits until all ranks have come.

        The device is the current one of the calling thread.
        """

    def group_start(self) -> None:
        """From now on this thread's calls are collected."""

    def group_end(self) -> None:
        """Queues what was collected, as one."""

    def primitive(self, name: str, comm: Any) -> Primitive:
        """A function of `PRIMITIVES` for a communicator; it queues and returns."""

    def async_error(self, comm: Any) -> int:
        """The result of what was queued before: success, in progress or an error."""

    def last_error(self, comm: Any) -> str:
        """What NCCL says of the last error of this process, "" for nothing."""

    def abort(self, comm: Any) -> None:
        """Ends all that is queued, wherever it waits, and frees the communicator."""

    def destroy(self, comm: Any) -> None:
        """Frees a communicator when its work is done."""


@contextmanager
def statuses(library: Library) -> Iterator[None]:
    """Raises the binding's own errors as `NcclStatus`."""
    try:
        yield
    except library.error as error:
        raise NcclStatus(int(getattr(error, "status", -1)), str(error)) from error


_IN_NCCL4PY = {name: name for name in PRIMITIVES} | {"receive": "recv", "all_to_all": "allto_all"}
_IN_CUPY = {
    "all_reduce": "allReduce",
    "reduce_scatter": "reduceScatter",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "all_gather": "allGather",
    "send": "send",
    "receive": "recv",
}


class Nccl4py:
    """The library over the flat functions of nccl4py.

    Args:
        module: ``nccl.bindings.nccl``.
        release: the version of nccl4py.
    """

    def __init__(self, module: Any, release: str) -> None:
        self._module = module
        self.name = f"nccl4py {release}"
        self.version = int(module.get_version())
        self.error: type[Exception] = module.NCCLError
        self.group_start: Callable[[], None] = module.group_start
        self.group_end: Callable[[], None] = module.group_end
        self.abort: Callable[[Any], None] = module.comm_abort
        self.destroy: Callable[[Any], None] = module.comm_destroy
        self._functions = {ours: getattr(module, theirs) for ours, theirs in _IN_NCCL4PY.items()}

    def unique_id(self) -> bytes:
        """128 bytes by which the ranks of a new communicator find each other."""
        return bytes(memoryview(self._module.get_unique_id()).cast("B"))

    def join(self, size: int, unique_id: bytes, rank: int) -> Any:
        """The device's end of a new communicator."""
        place = self._module.UniqueId.from_buffer(bytearray(unique_id))
        return self._module.comm_init_rank(size, place, rank)

    def primitive(self, name: str, comm: Any) -> Primitive:
        """A function of `PRIMITIVES`."""
        if name == "all_to_all" and self.version < ALL_TO_ALL:
            return partial(by_pairs, self, int(self._module.comm_count(comm)), comm)
        function = self._functions[name]

        def call(*arguments: int) -> None:
            function(*arguments[:-1], comm, arguments[-1])

        return call

    def async_error(self, comm: Any) -> int:
        """The result of what was queued before."""
        return int(self._module.comm_get_async_error(comm))

    def last_error(self, comm: Any) -> str:
        """What NCCL says of the last error of this process."""
        return str(self._module.get_last_error(comm))


class CupyNccl:
    """The library over CuPy's binding.

    Args:
        module: ``cupy.cuda.nccl``.
        release: CuPy's version.
    """

    def __init__(self, module: Any, release: str) -> None:
        self.name = f"CuPy {release}"
        self.version = int(module.get_version())
        self.error: type[Exception] = module.NcclError
        self.group_start: Callable[[], None] = module.groupStart
        self.group_end: Callable[[], None] = module.groupEnd
        self.unique_id: Callable[[], bytes] = module.get_unique_id
        self.join: Callable[[int, bytes, int], Any] = module.NcclCommunicator

    def primitive(self, name: str, comm: Any) -> Primitive:
        """A function of `PRIMITIVES`; the all-to-all is one of ours."""
        if name == "all_to_all":
            return partial(by_pairs, self, int(comm.size()), comm)
        function: Primitive = getattr(comm, _IN_CUPY[name])
        return function

    def async_error(self, comm: Any) -> int:
        """The result of what was queued before."""
        try:
            comm.check_async_error()
        except self.error as error:
            return int(getattr(error, "status", -1))
        return SUCCESS

    def last_error(self, comm: Any) -> str:
        """Nothing: this binding does not say."""
        return ""

    def abort(self, comm: Any) -> None:
        """Ends all that is queued, and frees the communicator."""
        comm.abort()

    def destroy(self, comm: Any) -> None:
        """Frees a communicator."""
        comm.destroy()


ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)
"""Bytes of an element, by NCCL's number of its type."""


def by_pairs(
    library: Library,
    size: int,
    comm: Any,
    send: int,
    receive: int,
    count: int,
    dtype: int,
    stream: int,
) -> None:
    """An all-to-all by sends and receives, for libraries without one."""
    step = count * ITEMSIZES[dtype]
    give, take = (library.primitive(name, comm) for name in ("send", "receive"))
    library.group_start()
    for peer in range(size):
        give(send + peer * step, count, dtype, peer, stream)
        take(receive + peer * step, count, dtype, peer, stream)
    library.group_end()


Adapter = Callable[[Any, str], Library]
BINDINGS: tuple[tuple[str, str, Adapter], ...] = (
    ("nccl4py", "nccl.bindings.nccl", Nccl4py),
    ("cupy-cuda12x", "cupy.cuda.nccl", CupyNccl),
    ("cupy-cuda13x", "cupy.cuda.nccl", CupyNccl),
    ("cupy", "cupy.cuda.nccl", CupyNccl),
)
"""Distribution, module and adapter of each binding, the one to take first."""

INSTALL = "uv add 'flow-dist[cu12]' (or flow-dist[cu13])"
WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")


def probe_nccl() -> Available | Unavailable:
    """Whether there is a binding and the library of NCCL; its devices are flow-cuda's business."""
    bindings = list(_installed(name for name, _, _ in BINDINGS))
    if not bindings:
        reason = "neither nccl4py nor CuPy, by which NCCL is called, is installed"
        return Unavailable(reason, INSTALL)
    library = next(_installed(WHEELS), None) or ctypes.util.find_library("nccl")
    if library is None:
        reason = f"the library of NCCL is not installed, though {bindings[0]} is"
        return Unavailable(reason, INSTALL)
    return Available(1, f"{bindings[0]}, {library}")


def _installed(names: Iterable[str]) -> Iterator[str]:
    """Distributions that are there, with their versions."""
    for name in names:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def load_library() -> Library:
    """NCCL, over the first binding that works.

    Raises:
        LaunchError: none does, with each one's reason; or NCCL is too old.
    """
    reasons = []
    for distribution, module, adapter in BINDINGS:
        try:
            release = metadata.version(distribution)
            return _new_enough(adapter(importlib.import_module(module), release))
        except metadata.PackageNotFoundError:
            continue
        except (ImportError, AttributeError, RuntimeError, OSError) as error:
            reasons.append(f"{distribution}: {type(error).__name__}: {error}")
    raise LaunchError(
        "loading NCCL",
        found="; ".join(reasons) or "neither nccl4py nor CuPy",
        allowed="a binding of NCCL and its library",
        hint=INSTALL,
    )


def _new_enough(library: Library) -> Library:
    if library.version < OLDEST:
        raise LaunchError(
            f"loading NCCL over {library.name}",
            found=f"NCCL {version_text(library.version)}",
            allowed=f"{version_text(OLDEST)} or later",
            hint=INSTALL,
        )
    return library


def version_text(version: int) -> str:
    """A version as people write it.

    >>> version_text(22803), version_text(23203)
    ('2.28.3', '2.32.3')
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
