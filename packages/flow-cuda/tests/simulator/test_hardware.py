"""The simulator checks the order and the location of work on several streams and devices."""

from typing import Any

import numpy as np
import pytest
from cuda_simulator.hardware import Machine, OrderError, Simulator, SimulatorError

from flow_cuda.driver.gpu import GpuDriver


def devices() -> list[Simulator]:
    machine = Machine()
    return [GpuDriver(Simulator(i, machine=machine), chunk=64).hardware for i in range(2)]


def pair() -> tuple[Simulator, Simulator, Any, Any]:
    one, two = devices()
    return one, two, one.allocate(64), two.allocate(64)


def streams() -> tuple[Simulator, Any, Any, Any]:
    """Return a device, a second stream of it, and two allocations."""
    one, _ = devices()
    return one, one.stream("other"), one.allocate(64), one.allocate(64)


def test_copy_must_wait_for_work_on_another_stream() -> None:
    one, other, near, far = streams()
    one.zero(other, far.address, 64)
    with pytest.raises(OrderError, match="nothing orders the two"):
        one.copy(one.compute, near.address, far.address, 64)
    one.wait(one.compute, one.record(other))
    one.copy(one.compute, near.address, far.address, 64)


def test_stream_must_not_overwrite_memory_that_another_one_reads() -> None:
    one, other, near, far = streams()
    one.copy(one.compute, near.address, far.address, 64)
    with pytest.raises(OrderError, match="nothing orders the two"):
        one.zero(other, far.address, 64)
    one.wait(other, one.record(one.compute))
    one.zero(other, far.address, 64)


def test_work_accesses_memory_of_its_own_device_only() -> None:
    one, _, near, far = pair()
    with pytest.raises(SimulatorError, match="memory of device 1"):
        one.zero(one.compute, far.address, 64)
    with pytest.raises(SimulatorError, match="memory of device 1"):
        one.copy(one.compute, near.address, far.address, 64)


def test_stream_accepts_work_of_its_own_device_only() -> None:
    one, two, near, _ = pair()
    with pytest.raises(SimulatorError, match="a stream of device 1"):
        one.zero(two.compute, near.address, 64)


def test_wait_first_runs_pending_work_of_another_stream() -> None:
    one, other, near, far = streams()
    one.zero(other, far.address, 64)
    one.wait(one.compute, one.record(other))
    one.copy(one.compute, near.address, far.address, 64)
    one.synchronize(one.record(one.compute))
    assert not np.frombuffer(
        (np.ctypeslib.ctypes.c_char * 64).from_address(near.address), "u1"
    ).any()


def test_capture_must_join_all_forked_streams() -> None:
    one, two, _, far = pair()
    one.begin_capture(one.compute)
    two.wait(two.compute, one.record(one.compute))
    two.zero(two.compute, far.address, 64)
    with pytest.raises(SimulatorError, match="for which the first stream does not wait"):
        one.end_capture(one.compute)
    assert one.compute.recording is None
    assert two.compute.recording is None


def test_capture_ends_after_it_began() -> None:
    one, _, _, _ = pair()
    with pytest.raises(SimulatorError, match="ending the capture"):
        one.end_capture(one.compute)


def test_capture_accepts_no_outside_events() -> None:
    one, two, _, _ = pair()
    outside = two.record(two.compute)
    one.begin_capture(one.compute)
    with pytest.raises(SimulatorError, match="outside of that capture"):
        one.wait(one.compute, outside)


def test_replay_checks_the_order_within_the_graph() -> None:
    one, other, near, far = streams()
    one.begin_capture(one.compute)
    one.wait(other, one.record(one.compute))
    one.zero(other, far.address, 64)
    one.copy(one.compute, near.address, far.address, 64)
    one.wait(one.compute, one.record(other))
    graph = one.end_capture(one.compute)
    with pytest.raises(OrderError, match="nothing orders the two"):
        one.replay(one.compute, graph)


def test_memory_is_counted_per_device() -> None:
    one, two = devices()
    before = one.free_bytes(), two.free_bytes()
    held = one.allocate(1000)
    assert (one.free_bytes(), two.free_bytes()) == (before[0] - held.nbytes, before[1])
