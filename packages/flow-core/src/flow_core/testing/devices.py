"""The kit for device drivers: subclass `DeviceKit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.alignment import ALIGNMENT
from flow_core.base.arrays import DriverArray
from flow_core.base.dtypes import ALL, DType, as_dtype
from flow_core.device import Arena, Driver, Launch, Stream
from flow_core.plugins.specs import Available, Unavailable
from flow_core.sharding.topology import Device
from flow_core.testing.kit import Kit, Parameters

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 5), (2, 1, 4), (0,), (3, 0, 2))


class DeviceKit(Kit):
    """Tests that a driver allocates, copies, orders and runs work as the runtime expects.

    The name in a `Gap` is the device type; for tests of several element types, a gap may also have
    element types.

    Attributes:
        device_type: the device type under test.
        index: index of the device.
    """

    device_type: ClassVar[str] = "cpu"
    index: ClassVar[int] = 0

    def driver(self) -> Driver:
        """Return the driver under test; skip the test if no device is available."""
        found = self.shared_registry().probe(self.device_type)
        if isinstance(found, Unavailable):
            pytest.skip(f"no device of type {self.device_type!r}: {found.reason}")
        driver: Driver = self.once(
            "driver", lambda: self.shared_registry().driver(Device(self.device_type, 0, self.index))
        )
        return driver

    def address(self, array: DriverArray) -> int | None:
        """Return the address of a device array or None, by default from its array interface."""
        for name in ("__cuda_array_interface__", "__array_interface__"):
            interface = getattr(array, name, None)
            if interface is not None:
                return int(interface["data"][0])
        return None

    def work(self, driver: Driver, stream: Stream, target: DriverArray, value: int) -> Launch:
        """Return a launch that fills a device array with a number, on a stream.

        The launch that this method returns copies from the host.  Tests of an asynchronous driver
        override the method with a launch that only enqueues work, as kernels do.
        """
        if self.is_asynchronous(driver):
            pytest.fail("the driver is asynchronous: override `work`")
        source = np.full(target.shape, value, target.dtype)
        return lambda: driver.copy_in(target, source)

    def failing_work(self, driver: Driver, stream: Stream) -> Launch | None:
        """Return a launch that enqueues failing work; None if no work can fail on the device."""
        return None

    def is_asynchronous(self, driver: Driver) -> bool:
        """Return whether launches of the driver may return before their work is done."""
        return driver.asynchronous

    def burst(self, driver: Driver, stream: Stream, target: Any, value: int) -> None:
        """Fill an array many times with a number, so that the work is pending for a while."""
        driver.compile([self.work(driver, stream, target, value)] * BURST)()

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return a test's parameters: the device type, and each element type if it takes one."""
        dtypes = [d.name for d in ALL if d.name != "char"]
        if check in _PER_DTYPE:
            return ((self.device_type, dtype) for dtype in dtypes)
        return iter([(self.device_type,)])

    def array(self, shape: tuple[int, ...], dtype: DType | str) -> DriverArray:
        """Create a device array in an arena of its own, at an offset."""
        type_ = as_dtype(dtype)
        count = int(np.prod(shape))
        arena = self.driver().allocate(ALIGNMENT + count * type_.itemsize)
        return arena.view(ALIGNMENT, shape, type_.numpy)

    # ------------------------------------------------------------------------------- tests

    def test_probe(self, name: str) -> None:
        """Check that the probe returns a number of devices or a reason, and does not raise."""
        found = self.shared_registry().probe(name)
        if isinstance(found, Available):
            assert found.count > 0, "Available without devices: return Unavailable with a reason"
        else:
            assert found.reason, "Unavailable without a reason"

    def test_is_a_driver(self, name: str) -> None:
        """Check that the driver has all methods of the protocol."""
        assert isinstance(self.driver(), Driver)

    def test_memory(self, name: str) -> None:
        """Check that ``memory`` returns a number of bytes, or None."""
        found = self.driver().memory()
        assert found is None or (type(found) is int and found > 0), repr(found)

    def test_arena_size(self, name: str) -> None:
        """Check that an arena has the requested size, including 0."""
        for nbytes in (0, 1, 64, 4097):
            assert self.driver().allocate(nbytes).nbytes == nbytes

    def test_views_know_their_type(self, name: str, dtype: str) -> None:
        """Check that views are `DeviceArray`s with the requested shape and element type."""
        for shape in SHAPES:
            array = self.array(shape, dtype)
            for name in ("shape", "dtype"):
                assert hasattr(array, name), f"{type(array).__name__} has no {name}"
            assert isinstance(array.shape, tuple)
            assert array.shape == shape
            assert isinstance(array.dtype, np.dtype)
            assert array.dtype == as_dtype(dtype).numpy

    def test_alignment(self, name: str) -> None:
        """Check that arenas have the `DeviceSpec.alignment`, and views start at their offsets."""
        alignment = self.shared_registry().devices[name].alignment
        for nbytes in (64, 1000, 100_000):
            arena = self.driver().allocate(nbytes)
            start = self.address(arena.view(0, (1,), np.uint8))
            if start is None:
                pytest.skip("arrays do not expose their address: override `address`")
            assert start % alignment == 0, f"arena of {nbytes} bytes at {start:#x}"
            assert self.address(arena.view(16, (8,), np.float32)) == start + 16

    def test_views_share_the_arena(self, name: str) -> None:
        """Check that writes through one view are visible through another view."""
        driver = self.driver()
        arena = driver.allocate(256)
        whole, part = arena.view(0, (64,), np.int32), arena.view(8, (2, 3), np.int32)
        driver.copy_in(whole, np.arange(64, dtype=np.int32))
        np.testing.assert_array_equal(driver.copy_out(part), [[2, 3, 4], [5, 6, 7]])
        driver.copy_in(part, np.full((2, 3), -1, np.int32))
        expected = [0, 1, *[-1] * 6, *range(8, 64)]
        np.testing.assert_array_equal(driver.copy_out(whole), expected)

    def test_arenas_are_separate(self, name: str) -> None:
        """Check that two arenas share no memory."""
        driver = self.driver()
        first, second = (driver.allocate(64).view(0, (64,), np.uint8) for _ in range(2))
        for value, array in ((1, first), (2, second)):
            driver.copy_in(array, np.full(64, value, np.uint8))
        np.testing.assert_array_equal(driver.copy_out(first), 1)

    def test_arrays_outlive_names(self, name: str) -> None:
        """Check that a view keeps its memory alive without a reference to the arena."""
        array = self.array((1000,), "int32")
        self.driver().copy_in(array, np.arange(1000, dtype=np.int32))
        others = [self.array((1000,), "int32") for _ in range(8)]
        for other in others:
            self.driver().copy_in(other, np.zeros(1000, np.int32))
        np.testing.assert_array_equal(self.driver().copy_out(array), np.arange(1000))

    def test_round_trip(self, name: str, dtype: str) -> None:
        """Check that copying in and out preserves all bits, for all shapes."""
        for shape in SHAPES:
            source = _bits(shape, as_dtype(dtype))
            array = self.array(shape, dtype)
            self.driver().copy_in(array, source)
            found = self.driver().copy_out(array)
            assert isinstance(found, np.ndarray)
            assert (found.shape, found.dtype) == (source.shape, source.dtype)
            assert found.tobytes() == source.tobytes(), f"{dtype}{list(shape)}: {found}"

    def test_copy_in_takes_any_host_layout(self, name: str) -> None:
        """Check that ``copy_in`` accepts non-contiguous and read-only sources."""
        source = np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, ::2].T
        source.flags.writeable = False
        array = self.array(source.shape, "float32")
        self.driver().copy_in(array, source)
        np.testing.assert_array_equal(self.driver().copy_out(array), source)

    def test_copy_in_is_done_with_its_source(self, name: str) -> None:
        """Check that the source may change as soon as ``copy_in`` returns."""
        source, array = np.ones(1000, np.float32), self.array((1000,), "float32")
        self.driver().copy_in(array, source)
        source[:] = 2
        np.testing.assert_array_equal(self.driver().copy_out(array), 1)

    def test_copy_out_is_independent(self, name: str) -> None:
        """Check that results of ``copy_out`` belong to the caller and never change."""
        driver, array = self.driver(), self.array((3, 4), "float32")
        driver.copy_in(array, np.ones((3, 4), np.float32))
        found = driver.copy_out(array)
        driver.copy_in(array, np.zeros((3, 4), np.float32))
        np.testing.assert_array_equal(found, 1)
        found[:] = 7
        np.testing.assert_array_equal(driver.copy_out(array), 0)

    def test_copy_out_fills_a_given_array(self, name: str) -> None:
        """Check that ``copy_out`` fills and returns a given host array, at every call."""
        driver, array, found = self.driver(), self.array((3, 4), "float32"), np.empty((3, 4), "f4")
        for value in (1, 2):
            driver.copy_in(array, np.full((3, 4), value, np.float32))
            assert driver.copy_out(array, found) is found
            np.testing.assert_array_equal(found, value)

    def test_compile_runs_in_order(self, name: str) -> None:
        """Check that compiled launches run in order at every call."""
        seen: list[int] = []
        step = self.driver().compile([partial(seen.append, i) for i in range(5)])
        assert seen == [], "compiling must not run launches"
        step()
        step()
        assert seen == [0, 1, 2, 3, 4] * 2

    def test_compile_of_nothing(self, name: str) -> None:
        """Check that compiling no launches returns a callable that does nothing."""
        self.driver().compile([])()

    def test_the_last_launch_wins(self, name: str) -> None:
        """Check that the work of a step runs in order, and ``copy_out`` reads its result."""
        driver, array = self.driver(), self.array((100,), "int32")
        stream = driver.stream("kit")
        works = [self.work(driver, stream, array, value) for value in (1, 2, 3)]
        step = driver.compile(works)
        for _ in range(2):
            driver.copy_in(array, np.zeros(100, np.int32))
            step()
            np.testing.assert_array_equal(driver.copy_out(array), 3)

    def test_copies_wait_for_work(self, name: str) -> None:
        """Check that copies run after all earlier work on any stream of the device."""
        driver, array = self.driver(), self.array((100,), "int32")
        for stream in map(driver.stream, ("first", "second")):
            self.burst(driver, stream, array, 1)
            driver.copy_in(array, np.full(100, 2, np.int32))
            np.testing.assert_array_equal(driver.copy_out(array), 2)
            self.burst(driver, stream, array, 3)
            np.testing.assert_array_equal(driver.copy_out(array), 3)

    def test_work_waits_for_copies(self, name: str) -> None:
        """Check that work enqueued after ``copy_in`` runs after the copy."""
        driver, array = self.driver(), self.array((100,), "int32")
        step = driver.compile([self.work(driver, driver.stream("kit"), array, 2)])
        for _ in range(3):
            driver.copy_in(array, np.full(100, 1, np.int32))
            step()
            np.testing.assert_array_equal(driver.copy_out(array), 2)

    def test_streams_of_one_name_are_one_stream(self, name: str) -> None:
        """Check that two requests for a stream by the same name return one queue of work."""
        driver, array = self.driver(), self.array((100,), "int32")
        self.burst(driver, driver.stream("same"), array, 1)
        driver.compile([self.work(driver, driver.stream("same"), array, 2)])()
        np.testing.assert_array_equal(driver.copy_out(array), 2)

    def test_errors_of_launches_surface(self, name: str) -> None:
        """Check that an exception of a launch reaches the caller, and later steps still run."""
        calls: list[int] = []

        def fails_once() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("first launch")

        step = self.driver().compile([fails_once])
        with pytest.raises(ValueError, match="first launch"):
            step()
        step()
        assert len(calls) == 2

    def test_failing_work_is_reported(self, name: str) -> None:
        """Check that waiting for failed work or copying its results raises an error.

        Later steps must still run.
        """
        driver, array = self.driver(), self.array((4,), "int32")
        stream = driver.stream("kit")
        fails = self.failing_work(driver, stream)
        if fails is None:
            pytest.skip("no failing work: override `failing_work` if work can fail")
        waits = (
            stream.synchronize, lambda: stream.record().wait(), lambda: driver.copy_out(array)
        )  # fmt: skip
        for wait in waits:
            driver.compile([fails])()
            assert _raises(wait), "the error of the failed work is lost"
            driver.compile([self.work(driver, stream, array, 7)])()
            np.testing.assert_array_equal(driver.copy_out(array), 7)

    def test_events(self, name: str) -> None:
        """Check that other streams and the host can wait for an event, repeatedly."""
        driver = self.driver()
        first, second = driver.stream("first"), driver.stream("second")
        event = first.record()
        second.wait_event(event)
        second.wait_event(event)
        event.wait()
        second.record().wait()
        first.synchronize()
        second.synchronize()

    def test_streams_wait_for_events(self, name: str) -> None:
        """Check that work after ``wait_event`` runs after the work before ``record``."""
        driver, array = self.driver(), self.array((100,), "int32")
        first, second = driver.stream("first"), driver.stream("second")
        for one, other in ((first, second), (second, first)):
            self.burst(driver, one, array, 1)
            other.wait_event(one.record())
            driver.compile([self.work(driver, other, array, 2)])()
            np.testing.assert_array_equal(driver.copy_out(array), 2)

    def test_the_host_waits_for_events(self, name: str) -> None:
        """Check that ``Event.wait`` and ``synchronize`` return only when earlier work is done."""
        driver, array = self.driver(), self.array((100,), "int32")
        first, second = driver.stream("first"), driver.stream("second")
        waits: tuple[Launch, ...] = (lambda: first.record().wait(), first.synchronize)
        for wait in waits:
            self.burst(driver, first, array, 1)
            wait()
            driver.compile([self.work(driver, second, array, 2)])()
            np.testing.assert_array_equal(driver.copy_out(array), 2)

    def test_streams_wait_for_other_drivers(self, name: str) -> None:
        """Check that a stream waits for another driver's event by calling the event's ``wait``."""
        driver, array = self.driver(), self.array((100,), "int32")
        stream, event = driver.stream("kit"), _HostEvent()
        driver.copy_in(array, np.zeros(100, np.int32))
        stream.wait_event(event)
        driver.compile([self.work(driver, stream, array, 1)])()
        driver.copy_out(array)
        assert event.waits, "`wait_event` must call `wait` of events that it does not know"

    def test_allocations_are_counted(self, name: str) -> None:
        """Check that copies and launches allocate nothing, if the driver counts ``allocations``."""
        driver = self.driver()
        if driver.allocations() is None:
            pytest.skip("the driver does not count allocations")

        def count() -> int:
            return driver.allocations() or 0

        before = count()
        array = self.array((100,), "int32")
        assert count() > before, "an arena was allocated"
        step = driver.compile([self.work(driver, driver.stream("kit"), array, 1)])

        def run() -> None:
            driver.copy_in(array, np.zeros(100, np.int32))
            step()
            driver.copy_out(array)

        run()
        run()
        before = count()
        run()
        assert count() == before, f"{count() - before} allocations by copies and launches"

    def test_empty_arena(self, name: str) -> None:
        """Check that an arena of no bytes works, as for a plan without buffers."""
        arena: Arena = self.driver().allocate(0)
        assert tuple(arena.view(0, (0,), np.float32).shape) == (0,)


BURST = 20
"""Number of launches that keep a stream busy."""


class _HostEvent:
    """An event of another driver, which counts how often ``wait`` is called."""

    waits = 0

    def wait(self) -> None:
        self.waits += 1


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:  # noqa: BLE001 - the error of a driver, of any type
        return True
    return False


_PER_DTYPE = ("views_know_their_type", "round_trip")


def _bits(shape: tuple[int, ...], dtype: DType) -> Any:
    """Return an array of varied bit patterns with NaN and infinities; for bool, truth values."""
    rng = np.random.default_rng(11)
    high = 2 if dtype.kind == "b" else 256
    raw = rng.integers(0, high, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return raw.view(dtype.numpy).reshape(shape)
