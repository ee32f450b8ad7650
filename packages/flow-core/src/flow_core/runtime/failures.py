"""Errors of plugins' code at run time: drivers, communicators (comms) and launches of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Protocol

from flow_core.base.arrays import DeviceArray
from flow_core.base.errors import FlowError, SourceLine, user_line
from flow_core.comm.exchange import BOXING
from flow_core.device import Arena, Driver, Launch, Stream
from flow_core.ir.graph import TensorType
from flow_core.plan import Plan, Task
from flow_core.plugins.guards import plugin_code, plugin_error, result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.records import Origin
from flow_core.plugins.registry import HookCall, describe_kernel, kernel_key
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec
from flow_core.sharding.topology import Device


class KernelSource(Protocol):
    """The part of the registry's interface that the runtime needs.

    Attributes:
        origins: the plugin of each record, by (table, name).
        calls: implementations of the hooks that are called after loading, by hook.
    """

    @property
    def origins(self) -> Mapping[tuple[str, object], Origin]:
        """The plugin of each record, by (table, name)."""

    @property
    def calls(self) -> Mapping[str, tuple[HookCall, ...]]:
        """Implementations of the hooks that are called after loading, by hook."""

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        """Op specs by type."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """Return the kernel for a query."""


_DEFERRED = (
    "set FLOW_SYNC_LAUNCHES=1, which waits for the work of each launch, and run the program again "
    "to find the op"
)


def line_of(task: Task) -> SourceLine | None:
    """Return the user's line of a task, or None if it is unknown."""
    return SourceLine.parsed(task.line)


def allocated(driver: Driver, device: Device, nbytes: int, source: KernelSource) -> Arena:
    """Allocate memory of a device.

    Raises:
        MemoryError: the device does not have enough memory.
        PluginError: the driver fails in another way, or does not return an arena of that size.
    """
    origin = source.origins.get(("devices", device.type))
    attempted = f"allocating {nbytes:,} bytes by the driver of {device}, {origin}"
    with plugin_code(attempted, origin, user_line()):
        arena = driver.allocate(nbytes)
        size = getattr(arena, "nbytes", None)
        if isinstance(size, int) and size >= nbytes and hasattr(arena, "view"):
            return arena
        found = show(arena) if size is None else f"an arena of {size} bytes"
        allowed = f"an arena (`nbytes`, `view`) of at least {nbytes:,} bytes"
        raise result_error(attempted, origin, found, allowed)


def stream_of(driver: Driver, device: Device, name: str, source: KernelSource) -> Stream:
    """Return a stream of a device.

    Raises `PluginError` if the driver fails, or does not return a stream.
    """
    origin = source.origins.get(("devices", device.type))
    attempted = f"calling `stream({name!r})` of the driver of {device}, {origin}"
    with plugin_code(attempted, origin, user_line()):
        stream = driver.stream(name)
        if all(hasattr(stream, method) for method in ("record", "wait_event", "synchronize")):
            return stream
        allowed = "a stream (`record`, `wait_event`, `synchronize`)"
        raise result_error(attempted, origin, show(stream), allowed)


def compiled(
    driver: Driver, device: Device, launches: Sequence[Launch], source: KernelSource
) -> Launch:
    """Return one callable that runs launches of a device.

    Raises `PluginError` if the driver fails, or does not return a callable.
    """
    origin = source.origins.get(("devices", device.type))
    attempted = f"calling `compile` of the driver of {device}, {origin}"
    with plugin_code(attempted, origin, user_line()):
        launch = driver.compile(launches)
        if callable(launch):
            return launch
        raise result_error(attempted, origin, show(launch), "a callable without arguments")


def viewed(
    arena: Arena, offset: int, type_: TensorType, device: Device, source: KernelSource
) -> DeviceArray:
    """Return an array in an arena.

    Raises `PluginError` if the arena fails, or does not return an array of that shape.
    """
    try:
        array = arena.view(offset, type_.shape, type_.dtype.numpy)
    except (FlowError, MemoryError):
        raise
    except Exception as error:
        raise plugin_error(*_viewing(device, source), error, user_line()) from error
    shape = getattr(array, "shape", None)
    if shape is not None and tuple(shape) == type_.shape:
        return array
    found = show(array) if shape is None else f"an array of shape {tuple(shape)}"
    allowed = f"an array of shape {type_.shape}"
    raise result_error(*_viewing(device, source), found, allowed, user_line())


def _viewing(device: Device, source: KernelSource) -> tuple[str, Origin | None]:
    origin = source.origins.get(("devices", device.type))
    return f"calling `view` of an arena of the driver of {device}, {origin}", origin


class Blame:
    """Find the task, the kernel and the plugin of an error in a plan's launches."""

    def __init__(self, plan: Plan, source: KernelSource, comm: str) -> None:
        self._plan = plan
        self._source = source
        self._comm = comm

    def query(self, task: Task) -> KernelQuery:
        buffers, device_type = self._plan.buffers, task.device.type
        return KernelQuery(
            task.type,
            task.attrs,
            tuple([buffers[i].type for i in task.inputs]),
            tuple([buffers[i].type for i in task.outputs]),
            lambda query: self._source.find_kernel(query, device_type),
            self._plan.settings,
        )

    def attempted(self, doing: str, task: Task) -> tuple[str, Origin | None]:
        """Return a description of what was attempted with a task, and the plugin whose code ran."""
        what = f"{doing} {task.type} {task.op!r} of job {self._plan.job!r} on {task.device}"
        if task.type == BOXING:
            origin = self._source.origins.get(("comms", self._comm))
            return f"{what}, by comm {self._comm!r}, {origin}", origin
        kernel = self._source.find_kernel(self.query(task), task.device.type)
        origin = self._source.origins.get(("kernels", kernel_key(kernel)))
        return f"{what}, by {describe_kernel(kernel)}, {origin}", origin

    @contextmanager
    def task(self, doing: str, task: Task) -> Iterator[None]:
        """Add the task's op, kernel, plugin and line to exceptions of the ``with`` block."""
        try:
            yield
        except FlowError as error:
            _set_line(error, task)
            raise
        except Exception as error:
            attempted, origin = self.attempted(doing, task)
            raise plugin_error(attempted, origin, error, line_of(task)) from error

    @contextmanager
    def step(
        self, tasks: Sequence[Task], bound: Sequence[Sequence[Launch]], is_deferred: bool = False
    ) -> Iterator[None]:
        """Add the task's op, kernel, plugin and line to exceptions of launches.

        Args:
            is_deferred: whether work may fail after its launch has returned; the error then says
                how to find the op.
        """
        try:
            yield
        except Exception as error:
            task = _failed(error, tasks, bound)
            if task is not None:
                with self.task("running", task):
                    raise
            hint = _DEFERRED if is_deferred else None
            if isinstance(error, FlowError):
                error.with_context(hint=error.hint or hint)
                raise
            attempted = f"running a step of job {self._plan.job!r}"
            raise plugin_error(attempted, None, error).with_context(hint=hint) from error

    @contextmanager
    def observer(self, call: Callable[..., object]) -> Iterator[None]:
        """Add the name of its plugin to exceptions of an observer of steps."""
        calls = self._source.calls["flow_step_finished"]
        origin = next((entry.origin for entry in calls if entry.call is call), None)
        with plugin_code(f"calling hook flow_step_finished of {origin}", origin, user_line()):
            yield

    def check_outputs(self, tasks: Sequence[Task], arrays: Sequence[DeviceArray]) -> None:
        """Check, after the first step, that kernels have not replaced or resized their outputs.

        Raises `PluginResultError` if an array does not have the shape of its buffer.
        """
        for task in tasks:
            for i in task.outputs:
                shape, wanted = getattr(arrays[i], "shape", None), self._plan.buffers[i].type.shape
                if shape is not None and tuple(shape) != wanted:
                    raise result_error(
                        *self.attempted("running", task),
                        f"an output of shape {tuple(shape)} after the first step",
                        f"shape {wanted}: launches write to the bound arrays",
                        line_of(task),
                    )


def _set_line(error: FlowError, task: Task) -> None:
    if error.at is None:
        error.with_context(at=line_of(task))


def _failed(
    error: BaseException, tasks: Sequence[Task], bound: Sequence[Sequence[Launch]]
) -> Task | None:
    """Return the task whose launch is the value of a local variable in an error's traceback."""
    pairs = zip(tasks, bound, strict=True)
    owners = {id(launch): task for task, launches in pairs for launch in launches}
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    held = (owners.get(id(value)) for frame in frames for value in frame.f_locals.values())
    return next(filter(None, held), None)
