"""A test device that runs work with a delay, in memory that the host cannot read.

This is the strictest device that the contract of drivers allows: a thread per stream runs each
piece of work some milliseconds after it was enqueued, and arrays raise an error on every access by
numpy.  The device uses numpy's kernels.  As a plugin, this module provides four devices of type
"queued".
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import numpy as np
from numpy.typing import DTypeLike

from flow_core.base.arrays import Array, NumpyType
from flow_core.base.config import Settings
from flow_core.builtin.numpy_driver import NumpyArena
from flow_core.device import Driver, Event, Launch, Stream
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import (
    Available,
    BindContext,
    DeviceSpec,
    KernelQuery,
    KernelSpec,
    load,
)
from flow_core.sharding.topology import Device

FLOW_PLUGIN_API = "1.0"

DELAY = 0.005
"""The delay in seconds before the effect of a piece of work."""


class HostAccessError(RuntimeError):
    """An error: host code accessed the elements of an array of a queued device."""


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise HostAccessError("host code accesses device memory: only copies of the driver may")


class QueuedArray:
    """An array that only kernels of its device can read and write."""

    __slots__ = ("_hidden", "dtype", "shape")

    def __init__(self, hidden: Array) -> None:
        self._hidden = hidden
        self.shape: tuple[int, ...] = hidden.shape  # as in numpy
        self.dtype: NumpyType = hidden.dtype

    __array_interface__ = __array_struct__ = property(_refuse)
    __array__ = __array_ufunc__ = __array_function__ = __buffer__ = __dlpack__ = _refuse
    __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = __float__ = __int__ = _refuse


@dataclass(frozen=True, slots=True)
class QueuedArena:
    """One allocation of device memory."""

    memory: NumpyArena

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.memory.nbytes

    def view(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> QueuedArray:
        """Return an array that starts at byte ``offset``."""
        return QueuedArray(self.memory.view(offset, shape, dtype))


class QueuedEvent:
    """The completion of all work enqueued on a stream so far."""

    def __init__(self, stream: QueuedStream, done: Future[None]) -> None:
        self._stream, self.done = stream, done

    def wait(self) -> None:
        """Block until the work is done; raise the first error that was not reported before."""
        self.done.result()
        self._stream.report()


class QueuedStream:
    """A thread that runs work in order, each piece after a delay."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._thread = ThreadPoolExecutor(1, "flow-queued")
        self._errors: list[BaseException] = []

    def enqueue(self, work: Callable[[], object]) -> None:
        """Add a piece of work, which runs after the delay."""
        self._thread.submit(self._run, work)

    def _run(self, work: Callable[[], object]) -> None:
        time.sleep(self._delay)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported to the thread that waits
            self._errors.append(error)

    def report(self) -> None:
        """Raise the first error of earlier work, unless that has been done."""
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error

    def record(self) -> Event:
        """Return an event for the completion of the work enqueued so far."""
        return QueuedEvent(self, self._thread.submit(lambda: None))

    def wait_event(self, event: Event) -> None:
        """Make later work wait for an event; if it is of another driver, wait in the caller."""
        if isinstance(event, QueuedEvent):
            self._thread.submit(event.done.result)
        else:
            event.wait()

    def synchronize(self) -> None:
        """Block until all work is done; raise the first error that was not reported before."""
        self.record().wait()


class QueuedDriver(Driver):
    """The driver of a queued device."""

    asynchronous = True

    def __init__(
        self,
        device: Device,
        delay: float = DELAY,  # seconds before each piece of work
        stream: Callable[[float], QueuedStream] = QueuedStream,  # creates a stream, given the delay
    ) -> None:
        self.device = device
        self._allocations = 0
        self._delay, self._make = delay, stream
        self._streams: dict[str, QueuedStream] = {}

    def allocate(self, nbytes: int) -> QueuedArena:
        """Allocate device memory."""
        self._allocations += 1
        return QueuedArena(NumpyArena(nbytes))

    def stream(self, name: str) -> Stream:
        """Return the stream with a given name."""
        if name not in self._streams:
            self._streams[name] = self._make(self._delay)
        return self._streams[name]

    def _synchronize(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()

    def copy_in(self, target: QueuedArray, source: Array) -> None:
        """Copy a host array to the device, after all earlier work."""
        self._synchronize()
        np.copyto(target._hidden, source)

    def copy_out(self, source: QueuedArray, target: Array | None = None) -> Array:
        """Copy an array to the host, after all earlier work."""
        self._synchronize()
        found = np.empty(source.shape, source.dtype) if target is None else target
        np.copyto(found, source._hidden)
        return found

    def compile(self, launches: Sequence[Launch]) -> Launch:
        """Return a callable that calls the launches, which enqueue their work."""
        steps = tuple(launches)

        def run() -> None:
            for step in steps:
                step()

        return run

    def memory(self) -> int | None:
        """Return None, because memory has no limit."""
        return None

    def allocations(self) -> int:
        """Return the number of allocations so far."""
        return self._allocations


# ------------------------------------------------------------------------------------ kernels


@functools.cache
def _numpy_registry() -> Registry:
    return load_plugins(Settings(plugins=()))


def _kernel(query: KernelQuery) -> KernelSpec:
    """Return the numpy kernel for a query."""
    registry = _numpy_registry()
    return registry.find_kernel(_on_host(query), "cpu")


def _on_host(query: KernelQuery) -> KernelQuery:
    find = partial(_numpy_registry().find_kernel, device_type="cpu")
    return replace(query, find=find)


def accepts(query: KernelQuery) -> bool:
    """Return whether there is a numpy kernel for the op."""
    if any(dtype.is_object for dtype in query.dtypes):
        return False
    asked, known = _on_host(query), _numpy_registry().kernels(query.op, "cpu")
    return any(spec.accepts is None or spec.accepts(asked) for spec in known)


def workspace(query: KernelQuery) -> int:
    """Return the number of bytes of workspace that the numpy kernel needs."""
    own = _kernel(query).workspace
    return own(_on_host(query)) if own else 0


def bind(ctx: BindContext) -> Launch:
    """Return a launch that enqueues the launches of the numpy kernel on the stream."""
    kernel = _kernel(ctx.query)
    host = {id(x): x for x in (ctx.step, *ctx.inputs) if isinstance(x, np.ndarray)}
    copies = {key: np.array(x) for key, x in host.items()}
    hidden = partial(map, lambda x: x._hidden if isinstance(x, QueuedArray) else copies[id(x)])
    context = replace(
        ctx,
        query=_on_host(ctx.query),
        inputs=tuple(hidden(ctx.inputs)),
        outputs=tuple(hidden(ctx.outputs)),
        workspace=ctx.workspace._hidden if kernel.workspace else None,
        step=copies[id(ctx.step)],
    )
    bound = load(kernel.load)(context)
    launches = tuple(bound) if isinstance(bound, tuple | list) else (bound,)

    def work(numbers: Sequence[Array]) -> None:
        for target, number in zip(copies.values(), numbers, strict=True):
            target[...] = number
        with np.errstate(all="ignore"):
            for launch in launches:
                launch()

    # Step numbers and learning rates are in host memory; they are read when the launch is called.
    return lambda: ctx.stream.enqueue(partial(work, [x.copy() for x in host.values()]))


def fill(stream: QueuedStream, target: QueuedArray, value: int) -> Launch:
    """Return a launch that enqueues filling an array."""
    return lambda: stream.enqueue(partial(target._hidden.fill, value))


def flow_register_devices() -> tuple[DeviceSpec, ...]:
    """Return the device type "queued" with four devices."""
    return (DeviceSpec("queued", partial(Available, 4, "threads of this process"), QueuedDriver),)


def flow_register_kernels() -> tuple[KernelSpec, ...]:
    """Return a kernel for every op for which there is a numpy kernel."""
    return (KernelSpec("*", "queued", bind, accepts, 0, workspace, "queued.numpy"),)
