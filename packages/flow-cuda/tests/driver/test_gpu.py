"""The driver on a simulated device: copies, order, capture and replay."""

import gc
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from cuda_cases import PLUGIN, Collector, simulated_registry
from cuda_simulator import host_compiler
from cuda_simulator.hardware import OrderError, Simulator, SimulatorError

from flow_core.authoring.backends import Launch, strided
from flow_core.plugins.registry import Registry
from flow_core.testing import DeviceKit
from flow_cuda.device.hardware import Access, Operands, Product
from flow_cuda.device.launch import CopyLaunch, HostNumber, Queued, ZeroLaunch, call
from flow_cuda.driver.capture import describe
from flow_cuda.driver.gpu import GpuDriver, LaunchError, Step

CHUNK = 256
needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run kernels with"
)


@pytest.fixture
def driver() -> GpuDriver:
    return GpuDriver(Simulator(), chunk=CHUNK)


def array(driver: GpuDriver, values: np.ndarray):
    made = driver.allocate(max(values.nbytes, 1)).view(0, values.shape, values.dtype)
    driver.copy_in(made, values)
    return made


def doubled(x) -> Queued:
    """Return a launch that doubles an array in place."""
    return call("double_it", "double.h", ("float",), x, x.size, items=x.size)


@needs_compiler
class TestDevice(DeviceKit):
    plugin = PLUGIN
    device_type = "gpu"

    def registry(self) -> Registry:
        return simulated_registry()

    def work(self, driver: GpuDriver, stream: Any, target: Any, value: int) -> Launch:
        (launch,) = target.copier.fill(strided(target), value)
        return launch


def test_large_copies_are_staged_in_pieces(driver: GpuDriver) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    made = array(driver, values)
    log = driver.hardware.log
    pieces = [line for line in log if line == f"pinned {2 * CHUNK}"]
    assert len(pieces) == 1, "one allocation of two alternating pieces"
    np.testing.assert_array_equal(driver.copy_out(made), values)
    assert sum("h2d" in line and ": copy" in line for line in log) == -(-values.nbytes // CHUNK)


def test_steady_state_allocates_nothing(driver: GpuDriver) -> None:
    values = np.ones(300, np.float32)
    made, other = array(driver, values), array(driver, values)
    step = driver.compile([CopyLaunch(driver.hardware, other, made)])
    for _ in range(3):
        driver.copy_in(made, values)
        step()
        driver.copy_out(other)
    before = len(driver.hardware.log)
    driver.copy_in(made, values)
    step()
    driver.copy_out(other)
    later = driver.hardware.log[before:]
    assert not [line for line in later if line.startswith(("allocate", "pinned", "begin"))]


def test_copies_wait_for_pending_reads(driver: GpuDriver) -> None:
    """Arrays fed for the second step do not reach the first one, however late it runs."""
    first, second = np.ones(64, np.float32), np.full(64, 2, np.float32)
    made, kept = array(driver, first), array(driver, np.zeros((2, 64), np.float32))
    rows = [kept.part(i * 256, (64,), np.float32) for i in range(2)]
    copies = [driver.compile([CopyLaunch(driver.hardware, row, made)]) for row in rows]
    copies[0]()
    driver.copy_in(made, second)
    copies[1]()
    np.testing.assert_array_equal(driver.copy_out(kept), [first, second])


def test_work_runs_only_when_synchronized(driver: GpuDriver) -> None:
    hardware = driver.hardware
    made = array(driver, np.ones(64, np.float32))
    hardware.synchronize(hardware.record(hardware.compute))
    raw = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 64).from_address(made.address))
    ZeroLaunch(hardware, made)()
    assert raw[0] == 1, "queued, but not awaited"
    hardware.synchronize(hardware.record(hardware.stream("other")))
    assert raw[0] == 1, "another stream does not wait for this one"
    hardware.synchronize(hardware.record(hardware.compute))
    assert raw[0] == 0


CONFLICTS = {"write after write": ("zero", "zero"), "read after write": ("zero", "copy")}


@pytest.mark.parametrize("pair", CONFLICTS.values(), ids=list(CONFLICTS))
def test_unordered_streams_are_an_error(pair: tuple[str, str]) -> None:
    hardware = Simulator()
    memory, other = hardware.allocate(64), hardware.allocate(64)
    first, second = hardware.stream("first"), hardware.stream("second")
    works = {
        "zero": lambda stream: hardware.zero(stream, memory.address, 64),
        "copy": lambda stream: hardware.copy(stream, other.address, memory.address, 64),
    }
    works[pair[0]](first)
    with pytest.raises(OrderError, match="nothing orders the two"):
        works[pair[1]](second)
    hardware.wait(second, hardware.record(first))
    works[pair[1]](second)


def test_event_recorded_too_early_orders_nothing() -> None:
    hardware = Simulator()
    memory = hardware.allocate(64)
    first, second = hardware.stream("first"), hardware.stream("second")
    early = hardware.record(first)
    hardware.zero(first, memory.address, 64)
    hardware.wait(second, early)
    with pytest.raises(OrderError):
        hardware.zero(second, memory.address, 64)


def test_reads_need_no_order() -> None:
    hardware = Simulator()
    memory = hardware.allocate(64)
    for name in "ab":
        to = hardware.allocate(64)
        hardware.copy(hardware.stream(name), to.address, memory.address, 64)


def test_host_must_wait_before_accessing_pinned_memory() -> None:
    hardware = Simulator()
    memory, pinned = hardware.allocate(64), hardware.pinned(64)
    address = pinned.ctypes.data
    stream = hardware.stream("h2d")
    hardware.copy(stream, memory.address, address, 64)
    span = [(address, address + 64)]
    hardware.host_reads(span)
    with pytest.raises(OrderError):
        hardware.host_writes(span)
    hardware.synchronize(hardware.record(stream))
    hardware.host_writes(span)


def test_addresses_outside_of_allocations_are_rejected() -> None:
    hardware = Simulator()
    memory = hardware.allocate(64)
    with pytest.raises(SimulatorError, match="outside of all allocations"):
        hardware.zero(hardware.compute, memory.address + 32, 64)


def test_memory_is_limited_and_released() -> None:
    hardware = Simulator(nbytes=1000)
    memory = hardware.allocate(900)
    with pytest.raises(SimulatorError, match="100 free"):
        hardware.allocate(200)
    del memory
    assert hardware.free_bytes() == 1000


def test_products_outside_of_allocations_are_rejected() -> None:
    hardware = Simulator()
    a = hardware.allocate(2 * 3 * 4)
    product = Product(2, 2, 3, False, False, "float32")
    operands = Operands(a.address, a.address + 8, a.address)
    with pytest.raises(SimulatorError, match="outside"):
        hardware.product(hardware.compute, product, operands)


# --- steps


def test_step_is_captured_at_its_second_call_and_then_replayed(
    driver: GpuDriver,
) -> None:
    made = array(driver, np.ones(8, np.float32))
    step = driver.compile([ZeroLaunch(driver.hardware, made)])
    log = driver.hardware.log
    counts = []
    for _ in range(4):
        driver.copy_in(made, np.ones(8, np.float32))
        step()
        assert not driver.copy_out(made).any()
        counts.append((log.count("begin capture"), sum(x.startswith("replay") for x in log)))
    assert counts == [(0, 0), (1, 1), (1, 2), (1, 3)]


def test_host_calls_divide_a_step(driver: GpuDriver) -> None:
    made = array(driver, np.ones(8, np.float32))
    seen: list[str] = []
    work = ZeroLaunch(driver.hardware, made)
    step = Step(driver, [work, work, partial(seen.append, "x"), partial(seen.append, "y"), work])
    assert describe(step.parts).splitlines() == [
        "graph of 2", "2 calls: runs on the host: append", "graph of 1"
    ]  # fmt: skip
    step()
    step()
    assert seen == ["x", "y"] * 2
    assert driver.hardware.log.count("begin capture") == 2


def test_step_whose_capture_fails_stays_eager(driver: GpuDriver) -> None:
    class Broken(Queued):
        hardware = driver.hardware
        calls = 0

        def touched(self) -> Access:
            return Access()

        def queue(self, stream: object) -> None:
            Broken.calls += 1
            if Broken.calls == 2:
                raise ValueError("second")

    made = array(driver, np.ones(8, np.float32))
    step = driver.compile([Broken(), ZeroLaunch(driver.hardware, made)])
    step()
    with pytest.warns(RuntimeWarning, match="2 launches was not captured and stays eager: second"):
        step()
    assert driver.hardware.compute.recording is None
    driver.copy_in(made, np.ones(8, np.float32))
    step()
    assert not driver.copy_out(made).any()
    assert driver.hardware.log.count("begin capture") == 1
    assert gc.isenabled()


def test_garbage_is_not_collected_during_a_capture(driver: GpuDriver) -> None:
    """Garbage in cycles holds device memory, which must not be freed while a graph is captured."""
    hardware = driver.hardware

    class Allocating(ZeroLaunch):
        def queue(self, stream: object) -> None:
            cycle: list[object] = [hardware.kept.pop()] if hardware.kept else []
            cycle.append(cycle)
            del cycle
            for _ in range(1000):
                [[]].copy()
            super().queue(stream)

    hardware.kept = [hardware.allocate(64) for _ in range(2)]
    made = array(driver, np.ones(8, np.float32))
    step = driver.compile([Allocating(hardware, made)])
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step()
            step()
    finally:
        gc.set_threshold(*threshold)
    assert "end capture" in hardware.log
    assert any(line.startswith("replay") for line in hardware.log)


def test_allocation_and_free_invalidate_a_capture() -> None:
    hardware = Simulator()
    memory = hardware.allocate(64)
    hardware.begin_capture(hardware.compute)
    for allocate in (hardware.allocate, hardware.pinned):
        with pytest.raises(SimulatorError, match="a capture in progress"):
            allocate(64)
    del memory
    with pytest.raises(SimulatorError, match="64 bytes freed during the capture"):
        hardware.end_capture(hardware.compute)
    hardware.allocate(64)


def test_wait_during_a_capture_is_rejected(driver: GpuDriver) -> None:
    hardware = driver.hardware
    hardware.begin_capture(hardware.compute)
    with pytest.raises(SimulatorError, match="being captured"):
        hardware.synchronize(hardware.record(hardware.compute))


@needs_compiler
def test_host_values_reach_each_replay(driver: GpuDriver) -> None:
    hardware = driver.hardware
    host = np.zeros((), np.int64)
    number, out = (array(driver, np.zeros(1, np.int64)) for _ in range(2))

    class Reads(CopyLaunch):
        numbers = (HostNumber(host, number),)

    step = driver.compile([Reads(hardware, out, number)])
    log, uploads = hardware.log, 0
    for value in (*range(100), *range(50, 150), 7, 7, 8):
        host[()] = value
        before = log.count(f"{hardware.compute.name}: copy 8")
        step()
        uploads += log.count(f"{hardware.compute.name}: copy 8") > before
        host[()] = -1
        if value % 70 == 0 or value < 10:
            assert driver.copy_out(out).item() == value
    assert driver.copy_out(out).item() == 8
    assert uploads == 4, "uploads occur first and when the host does not count by one"


@needs_compiler
def test_steps_between_host_calls_share_one_upload(driver: GpuDriver) -> None:
    """CPU tasks split a program's step into several compiled ones, which read the same number."""
    hardware = driver.hardware
    host = np.zeros((), np.int64)
    number = HostNumber(host, array(driver, np.zeros(1, np.int64)))
    outs = [array(driver, np.zeros(1, np.int64)) for _ in range(3)]

    class Reads(CopyLaunch):
        numbers = (number,)

    steps = [driver.compile([Reads(hardware, out, number.device)]) for out in outs]
    log, uploads = hardware.log, []
    for value in (*range(20), *range(7, 20)):
        host[()] = value
        before = log.count(f"{hardware.compute.name}: copy 8")
        for step in steps:
            step()
        eager = 3 if value == 0 else 0
        uploads.append(log.count(f"{hardware.compute.name}: copy 8") - before - eager)
        assert [driver.copy_out(out).item() for out in outs] == [value] * 3
    assert uploads == [3, *[0] * 19, 1, *[0] * 12]


def test_kernels_declare_their_reads_and_writes() -> None:
    collector = Collector()
    driver = GpuDriver(Simulator(compiler=collector), chunk=CHUNK)
    x = driver.allocate(64).view(0, (4,), np.float32)
    launch = doubled(x)
    assert launch.access == Access((x.span,), (x.span,))


@needs_compiler
def test_barrier_skipped_by_some_threads_is_an_error() -> None:
    from flow_cuda.codegen.program import make_kernel
    from flow_cuda.device.launch import launch

    hardware = Simulator()
    driver = GpuDriver(hardware)
    x = array(driver, np.zeros(64, np.float32))
    body = "if (threadIdx.x < 3) __syncthreads();"
    launch(make_kernel("uneven", (("float *", "x"),), body, barriers=True), 64, x)()
    with pytest.raises(SimulatorError, match="barrier"):
        driver.copy_out(x)


@needs_compiler
def test_synchronous_steps_name_the_launch_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from flow_cuda.codegen.program import make_kernel
    from flow_cuda.device.launch import launch

    monkeypatch.setenv("FLOW_CUDA_SYNC", "1")
    hardware = Simulator()
    driver = GpuDriver(hardware)
    x = array(driver, np.ones(64, np.float32))
    body = "if (x[0] == 0 && threadIdx.x < 3) __syncthreads();"
    uneven = launch(make_kernel("uneven", (("float *", "x"),), body, barriers=True), 64, x)
    step = driver.compile([uneven, ZeroLaunch(hardware, x)])
    for _ in range(2):
        driver.copy_in(x, np.ones(64, np.float32))
        step()
    assert "begin capture" not in hardware.log
    with pytest.raises(LaunchError, match=r"running uneven_\w+\n.*a barrier"):
        step()


@pytest.mark.slow
@needs_compiler
def test_missing_barrier_is_detected() -> None:
    """Threads take turns: one that reads its neighbor too early reads the previous value."""
    from flow_cuda.codegen.program import make_kernel
    from flow_cuda.device.launch import launch

    body = """
    __shared__ float kept[64];
    kept[threadIdx.x] = x[threadIdx.x];
    {barrier}
    x[threadIdx.x] = kept[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    """
    found = []
    for barrier in ("__syncthreads();", ""):
        driver = GpuDriver(Simulator())
        values = np.arange(16, dtype=np.float32)
        x = array(driver, values)
        text = body.replace("{barrier}", barrier)
        launch(make_kernel("rotate", (("float *", "x"),), text, barriers=True), 1, x, blocks=True)()
        found.append((driver.copy_out(x) == np.roll(values, -1)).all())
    assert found == [True, False]


def test_page_locked_memory_lives_until_its_pending_work_has_run() -> None:
    hardware = Simulator()
    pinned, memory = hardware.pinned(64), hardware.allocate(64)
    hardware.copy(hardware.compute, memory.address, pinned.ctypes.data, 64)
    hardware.synchronize(hardware.record(hardware.compute))
    hardware.copy(hardware.compute, memory.address, pinned.ctypes.data, 64)
    del pinned
    with pytest.raises(OrderError, match="page-locked memory of copy 64 is free again"):
        hardware.synchronize(hardware.record(hardware.compute))
