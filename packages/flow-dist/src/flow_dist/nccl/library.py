"""NCCL behind a Protocol, through nccl4py, or through CuPy's binding without nccl4py."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any, Protocol, TypeAlias

from flow_core.authoring.specs import Available, Unavailable
from flow_core.base.errors import FlowError, install_command
from flow_dist.bootstrap.membership import LaunchError

SUCCESS, INVALID_USAGE, IN_PROGRESS = 0, 5, 7

ALL_TO_ALL = 22800
"""The first version of NCCL with an all-to-all."""

MIN_VERSION = 21800
"""The oldest supported version of NCCL."""

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

Buffers and streams are given as addresses.  Counts are numbers of elements: those of one part for
`reduce_scatter`, of one rank's input for `all_gather`, and of the part for each rank for
`all_to_all`.
"""

Primitive = Callable[..., object]


Communicator: TypeAlias = Any
"""A communicator object of the binding, which has no type information."""


class NcclStatus(FlowError):
    """An NCCL call has failed.

    Attributes:
        code: NCCL's result.
        text: NCCL's message.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__("calling NCCL", found=f"{text} ({code})")
        self.code, self.text = code, text


class Library(Protocol):
    """The functions of NCCL that the comm uses; NCCL communicators are objects of the binding."""

    name: str  # name of the binding, with its version
    version: int  # version of NCCL, such as 22803 for 2.28.3
    # The types of the exceptions that its calls raise; see `status_of`.
    error: tuple[type[Exception], ...]

    def unique_id(self) -> bytes:
        """Return 128 bytes by which the ranks of a new communicator find each other."""

    def join(self, size: int, unique_id: bytes, rank: int) -> Communicator:
        """Create a handle of a communicator for a device; wait until all ranks have joined.

        The device is the current device of the calling thread.
        """

    def group_start(self) -> None:
        """Start a group of this thread's calls."""

    def group_end(self) -> None:
        """Enqueue the calls of the group as one operation."""

    def primitive(self, name: str, comm: Communicator) -> Primitive:
        """Return a function of `PRIMITIVES` for a communicator; it enqueues work and returns."""

    def async_error(self, comm: Communicator) -> int:
        """Return NCCL's result for enqueued work: success, in progress or an error."""

    def last_error(self, comm: Communicator) -> str:
        """Return NCCL's message about the last error of this process, else ""."""

    def abort(self, comm: Communicator) -> None:
        """Abort all enqueued work, including waiting kernels, and free the communicator."""

    def destroy(self, comm: Communicator) -> None:
        """Free a communicator after its work is done."""


@contextmanager
def statuses(library: Library) -> Iterator[None]:
    """Convert the binding's exceptions to `NcclStatus`."""
    try:
        yield
    except library.error as error:
        code = status_of(error)
        if code < 0 and isinstance(error, KeyError):
            raise  # not from the binding
        text = error_text(code) if isinstance(error, KeyError) else str(error)
        raise NcclStatus(code, text) from error


def status_of(error: Exception) -> int:
    """Return NCCL's result in an exception of a binding; -1 if unknown.

    CuPy 14.2 looks its text up in a table that lacks results 7 and 8, so that a `KeyError` with the
    result takes the place of its own exception.

    >>> status_of(KeyError(7)), status_of(RuntimeError("no result"))
    (7, -1)
    """
    found = error.args[0] if isinstance(error, KeyError) and error.args else None
    return found if isinstance(found, int) else int(getattr(error, "status", -1))


def _nccl() -> ctypes.CDLL:
    """Return the library of NCCL, which the binding has loaded."""
    return ctypes.CDLL("libnccl.so.2")


def error_text(code: int) -> str:
    """Return NCCL's own text for a result."""
    try:
        describe = _nccl().ncclGetErrorString
    except (OSError, AttributeError) as error:
        return f"no text: {error}"
    describe.restype = ctypes.c_char_p
    return bytes(describe(code) or b"unknown").decode(errors="replace")


def last_error_text() -> str:
    """Return NCCL's message about the last error of this process; empty if there is none."""
    try:
        describe = _nccl().ncclGetLastError
    except (OSError, AttributeError):
        return ""
    describe.restype = ctypes.c_char_p
    return bytes(describe(None) or b"").decode(errors="replace")


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
    """An implementation of `Library` that calls the flat functions of nccl4py."""

    def __init__(self, module: Any, release: str) -> None:
        self._module = module
        self.name = f"nccl4py {release}"
        self.version = int(module.get_version())
        self.error: tuple[type[Exception], ...] = (module.NCCLError,)
        self.group_start: Callable[[], None] = module.group_start
        self.group_end: Callable[[], None] = module.group_end
        self.abort: Callable[[Any], None] = module.comm_abort
        self.destroy: Callable[[Any], None] = module.comm_destroy
        self._functions = {ours: getattr(module, theirs) for ours, theirs in _IN_NCCL4PY.items()}

    def unique_id(self) -> bytes:
        return bytes(memoryview(self._module.get_unique_id()).cast("B"))

    def join(self, size: int, unique_id: bytes, rank: int) -> Communicator:
        """Create a handle of a communicator for the current device."""
        place = self._module.UniqueId.from_buffer(bytearray(unique_id))
        return self._module.comm_init_rank(size, place, rank)

    def primitive(self, name: str, comm: Communicator) -> Primitive:
        """Return a function of `PRIMITIVES` for a communicator."""
        if name == "all_to_all" and self.version < ALL_TO_ALL:
            return partial(all_to_all_by_pairs, self, int(self._module.comm_count(comm)), comm)
        function = self._functions[name]

        def call(*arguments: int) -> None:
            function(*arguments[:-1], comm, arguments[-1])

        return call

    def async_error(self, comm: Communicator) -> int:
        """Return the result of enqueued work."""
        return int(self._module.comm_get_async_error(comm))

    def last_error(self, comm: Communicator) -> str:
        """Return NCCL's message about the last error of this process."""
        return str(self._module.get_last_error(comm))


class CupyNccl:
    """An implementation of `Library` that calls CuPy's binding."""

    def __init__(self, module: Any, release: str) -> None:
        self.name = f"CuPy {release}"
        self.version = int(module.get_version())
        self.error: tuple[type[Exception], ...] = (module.NcclError, KeyError)
        self.group_start: Callable[[], None] = module.groupStart
        self.group_end: Callable[[], None] = module.groupEnd
        self.unique_id: Callable[[], bytes] = module.get_unique_id
        self.join: Callable[[int, bytes, int], Any] = module.NcclCommunicator

    def primitive(self, name: str, comm: Communicator) -> Primitive:
        """Return a function of `PRIMITIVES`; for an all-to-all, `all_to_all_by_pairs`."""
        if name == "all_to_all":
            return partial(all_to_all_by_pairs, self, int(comm.size()), comm)
        function: Primitive = getattr(comm, _IN_CUPY[name])
        return function

    def async_error(self, comm: Communicator) -> int:
        """Return the result of enqueued work."""
        try:
            comm.check_async_error()
        except self.error as error:
            return status_of(error)
        return SUCCESS

    def last_error(self, comm: Communicator) -> str:
        """Return NCCL's message about the last error of this process."""
        return last_error_text()

    def abort(self, comm: Communicator) -> None:
        """Abort all enqueued work, and free the communicator."""
        comm.abort()

    def destroy(self, comm: Communicator) -> None:
        comm.destroy()


ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)
"""Sizes of elements in bytes, indexed by NCCL's numbers of element types."""


def all_to_all_by_pairs(
    library: Library,
    size: int,
    comm: Communicator,
    send: int,
    receive: int,
    count: int,
    dtype: int,
    stream: int,
) -> None:
    """Run an all-to-all as sends and receives, for libraries that have no all-to-all."""
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
"""The distribution, module and adapter of each binding, in order of preference."""

INSTALL = f"{install_command('flow-dist[cu12]')} (or flow-dist[cu13])"
WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")


def probe_nccl() -> Available | Unavailable:
    """Probe for a binding of NCCL and its library; flow-cuda probes for devices."""
    bindings = list(_installed(name for name, _, _ in BINDINGS))
    if not bindings:
        reason = "neither nccl4py nor CuPy, the bindings of NCCL, is installed"
        return Unavailable(reason, INSTALL)
    library = next(_installed(WHEELS), None) or ctypes.util.find_library("nccl")
    if library is None:
        reason = f"the library of NCCL is not installed, although {bindings[0]} is"
        return Unavailable(reason, INSTALL)
    return Available(1, f"{bindings[0]}, {library}")


def _installed(names: Iterable[str]) -> Iterator[str]:
    """Yield those of some distributions that are installed, with their versions."""
    for name in names:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def load_library() -> Library:
    """Load NCCL through the first binding that works.

    Raises `LaunchError` if no binding works (the error states the reasons), or NCCL is too old.
    """
    reasons = []
    for distribution, module, adapter in BINDINGS:
        try:
            release = metadata.version(distribution)
            return _check_version(adapter(importlib.import_module(module), release))
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


def _check_version(library: Library) -> Library:
    if library.version < MIN_VERSION:
        raise LaunchError(
            f"loading NCCL over {library.name}",
            found=f"NCCL {version_text(library.version)}",
            allowed=f"{version_text(MIN_VERSION)} or later",
            hint=INSTALL,
        )
    return library


def version_text(version: int) -> str:
    """Format a version number of NCCL.

    >>> version_text(22803), version_text(23203)
    ('2.28.3', '2.32.3')
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
