"""The kit of drivers accepts asynchronous ones, and detects those that break the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.device import Event, Launch
from flow_core.ir.graph import tensor_type
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_core.sharding.topology import Device
from flow_core.testing import DeviceKit, queued_device
from flow_core.testing.queued_device import (
    HostAccessError,
    QueuedArray,
    QueuedDriver,
    QueuedEvent,
    QueuedStream,
)
from flow_core.testing.rig import Rig


class QueuedKit(DeviceKit):
    device_type = "queued"
    index = 1

    def registry(self) -> Registry:
        return load_plugins(Settings(plugins=()), ["flow_core.testing.queued_device"])

    def address(self, array: Any) -> int:
        return int(array._hidden.ctypes.data)

    def work(self, driver: Any, stream: Any, target: Any, value: int) -> Launch:
        return queued_device.fill(stream, target, value)

    def failing_work(self, driver: Any, stream: Any) -> Launch:
        return lambda: stream.enqueue(lambda: 1 // 0)


class TestQueued(QueuedKit):
    pass


# --- drivers that break the contract


class NoWait(QueuedStream):
    """Forgets the events for which it should wait."""

    def wait_event(self, event: Event) -> None:
        pass


class TooEarly(QueuedStream):
    """Records an event that does not cover pending work."""

    def record(self) -> Event:
        return QueuedStream(0).record()


class Silent(QueuedStream):
    """Does not report errors."""

    def report(self) -> None:
        pass


class Unordered(QueuedDriver):
    """Copies without waiting for work."""

    def copy_in(self, target: QueuedArray, source: Any) -> None:
        np.copyto(target._hidden, source)


class NewStreams(QueuedDriver):
    """Creates a stream for each request."""

    def stream(self, name: str) -> QueuedStream:
        self._streams[str(len(self._streams))] = found = QueuedStream(self._delay)
        return found


class Allocating(QueuedDriver):
    """Allocates for each copy."""

    def copy_out(self, source: QueuedArray, target: Any = None) -> Any:
        self.allocate(64)
        return super().copy_out(source, target)


def with_stream(stream: Callable[[float], QueuedStream]) -> Callable[..., QueuedDriver]:
    """Return a driver whose work takes so long that a busy host does not hide a missing wait."""
    return lambda device: QueuedDriver(device, delay=0.05, stream=stream)


BROKEN: dict[str, tuple[Callable[..., QueuedDriver], str]] = {
    "forgets events": (with_stream(NoWait), "streams_wait_for_events"),
    "ignores other drivers": (with_stream(NoWait), "streams_wait_for_other_drivers"),
    "records too early": (with_stream(TooEarly), "streams_wait_for_events"),
    "does not block the host": (with_stream(TooEarly), "the_host_waits_for_events"),
    "loses errors": (with_stream(Silent), "failing_work_is_reported"),
    "copies too early": (partial(Unordered, delay=0.05), "copies_wait_for_work"),
    "a stream per request": (NewStreams, "streams_of_one_name_are_one_stream"),
    "allocates in steps": (Allocating, "allocations_are_counted"),
}


@pytest.mark.parametrize(
    ("attribute", "value"), [("dtype", "float32"), ("shape", [3]), ("dtype", None)]
)
def test_arrays_need_the_protocol(attribute: str, value: object) -> None:
    """The kit checks what `flow_core.base.arrays.DeviceArray` states."""

    class Named(QueuedKit):
        def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
            made = super().array(shape, dtype)
            delattr(made, attribute) if value is None else setattr(made, attribute, value)
            return made

    with pytest.raises(AssertionError):
        Named().test_views_know_their_type("queued", "float32")


@pytest.mark.parametrize(("driver", "check"), BROKEN.values(), ids=list(BROKEN))
def test_broken_drivers_fail(driver: Callable[..., QueuedDriver], check: str) -> None:
    class Broken(QueuedKit):
        def registry(self) -> Registry:
            module: Any = ModuleType("broken")
            module.FLOW_PLUGIN_API = "1.0"
            (spec,) = queued_device.flow_register_devices()
            module.flow_register_devices = lambda: [replace(spec, driver=driver)]
            return load_plugins(Settings(plugins=()), [module])

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Broken(), f"test_{check}")("queued")


@pytest.mark.parametrize("allocates", [False, True])
def test_allocating_launch_fails(allocates: bool) -> None:
    """A kernel that allocates device memory in each launch is detected on any device."""
    driver = QueuedDriver(Device("queued", 0, 0), delay=0)
    type_ = tensor_type((3,), float32)

    def bind(ctx: BindContext) -> Launch:
        negative = partial(np.negative, ctx.inputs[0]._hidden, out=ctx.outputs[0]._hidden)

        def launch() -> None:
            if allocates:
                driver.allocate(12)
            ctx.stream.enqueue(negative)

        return launch

    kernel = KernelSpec("negative", "queued", bind, name="kits.negative")
    rig = Rig(driver, kernel, KernelQuery("negative", {}, (type_,), (type_,)))
    arrays = [np.float32([1, 2, 3])]
    if allocates:
        with pytest.raises(AssertionError, match=r"kits\.negative allocates 1 times in its last"):
            rig.check([arrays])
    else:
        assert rig.check([arrays])[0][0].tolist() == [-1, -2, -3]


def test_asynchronous_driver_needs_work() -> None:
    class Default(QueuedKit):
        work = DeviceKit.work

    with pytest.raises(pytest.fail.Exception, match="override `work`"):
        Default().test_the_last_launch_wins("queued")


ACCESSES: dict[str, Callable[[Any], object]] = {
    "asarray": np.asarray,
    "ufunc": np.negative,
    "right operand": lambda x: np.ones(3) + x,
    "item": lambda x: x[0],
    "assignment": lambda x: x.__setitem__(0, 1),
    "copyto": lambda x: np.copyto(np.ones(3), x),
    "iteration": list,
    "truth": bool,
    "number": float,
    "buffer": memoryview,
}


@pytest.mark.parametrize("access", ACCESSES.values(), ids=list(ACCESSES))
def test_arrays_refuse_the_host(access: Callable[[Any], object]) -> None:
    array = QueuedArray(np.zeros(3))
    with pytest.raises((HostAccessError, TypeError)):
        access(array)
    assert isinstance(QueuedStream(0).record(), QueuedEvent)
