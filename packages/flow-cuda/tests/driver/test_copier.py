"""Device operations of comms: boxes are copied, combined and filled as in numpy."""

from typing import Any

import numpy as np
import pytest
from cuda_simulator import host_compiler
from cuda_simulator.hardware import OrderError, Simulator
from cuda_simulator.plugin import compiler

from flow_core.base.dtypes import ALL, as_dtype
from flow_core.device import Strided, strided
from flow_cuda.codegen import nvrtc
from flow_cuda.codegen.program import translation_unit
from flow_cuda.device.launch import Queued
from flow_cuda.driver.gpu import GpuDriver

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run kernels with"
)
DTYPES = [dtype.name for dtype in ALL if dtype.name != "char"]
UFUNC = {"sum": np.add, "max": np.maximum, "min": np.minimum}
RNG = np.random.default_rng(3)


@pytest.fixture
def driver() -> GpuDriver:
    return GpuDriver(Simulator(compiler=compiler()), chunk=1 << 12)


def put(driver: GpuDriver, value: Any) -> Any:
    made = driver.allocate(value.nbytes).view(0, value.shape, value.dtype)
    driver.copy_in(made, value)
    return made


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    low, high = (0, 2) if dtype == "bool" else (-9, 10)
    floats = as_dtype(dtype).is_floating
    rows = RNG.normal(0, 3, shape) if floats else RNG.integers(low, high, shape)
    return rows.astype(as_dtype(dtype).numpy)


@pytest.mark.representative(
    r"\[(sum-|(max|min)-(float16|bool))",
    "each type; each operation on truth values and on a type of 16 bits",
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", UFUNC)
def test_boxes_are_combined_in_order(driver: GpuDriver, dtype: str, operation: str) -> None:
    """Strided boxes, three at a time, each sum rounded; the first in place."""
    values = [numbers((5, 6), dtype) for _ in range(4)]
    arrays = [put(driver, value) for value in values]
    windows = [(slice(1, 4), slice(2, 5)), (slice(0, 3), slice(0, 3)), (slice(2, 5), slice(3, 6))]
    boxes = [strided(a)[w] for a, w in zip(arrays[:3], windows, strict=True)]
    target = strided(arrays[3])[windows[0]]
    copier = arrays[0].copier
    for launch in copier.combine(operation, target, boxes):
        launch()
    want = values[3].copy()
    parts = [v[w] for v, w in zip(values[:3], windows, strict=True)]
    ufunc = UFUNC[operation]
    want[windows[0]] = ufunc(ufunc(parts[0], parts[1]), parts[2])
    np.testing.assert_array_equal(driver.copy_out(arrays[3]), want)
    for launch in copier.combine(operation, strided(arrays[0]), [strided(a) for a in arrays[:2]]):
        launch()
    np.testing.assert_array_equal(driver.copy_out(arrays[0]), ufunc(*values[:2]))


@pytest.mark.representative(r"\[(uint8|int64)\]", "the smallest and the largest elements")
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_boxes_are_copied_and_filled(driver: GpuDriver, dtype: str) -> None:
    source, target = numbers((4, 3, 5), dtype), numbers((5, 4, 2), dtype)
    arrays = put(driver, source), put(driver, target)
    copier = arrays[0].copier
    given, made = strided(arrays[0])[1:3, :, 1:3], strided(arrays[1])[2:4, 1:4]
    rows = strided(arrays[1])[0:1], strided(arrays[0])[0:1].reshape(-1)[:8].reshape((1, 4, 2))
    launches = [*copier.copy(made, given), *copier.copy(*rows)]
    assert copier.copy(made[0:0], given[0:0]) == ()
    for launch in launches:
        launch()
    want = target.copy()
    want[2:4, 1:4] = source[1:3, :, 1:3]
    want[0] = source[0].reshape(-1)[:8].reshape(4, 2)
    np.testing.assert_array_equal(driver.copy_out(arrays[1]), want)
    for value in (0, 7):
        for launch in copier.fill(strided(arrays[0]), value):
            launch()
        assert (driver.copy_out(arrays[0]) == value).all()


def test_scratch_is_device_memory(driver: GpuDriver) -> None:
    copier = put(driver, np.zeros(3, np.float32)).copier
    row = copier.scratch(64).view(8, (4,), np.float64)
    driver.copy_in(row, np.arange(4.0))
    np.testing.assert_array_equal(driver.copy_out(row), np.arange(4.0))
    assert copier.place == driver.hardware.uuid()


def test_foreign_work_is_queued_captured_and_checked(driver: GpuDriver) -> None:
    """A library is called when a step is queued and when it is captured, never for a replay."""
    array, hardware, calls = put(driver, np.zeros(4, np.float32)), driver.hardware, []
    box = strided(array)

    def call(handle: int) -> None:
        calls.append(handle)
        for launch in box.array.copier.fill(box, 1):
            enqueue(hardware, handle, launch, box)

    launch = array.copier.foreign(call, "library", [box], [box])
    assert isinstance(launch, Queued)
    step = driver.compile([launch])
    for _ in range(4):
        driver.copy_in(array, np.zeros(4, np.float32))
        step()
        np.testing.assert_array_equal(driver.copy_out(array), np.ones(4))
    assert calls == 2 * [array.copier.stream()]
    other = hardware.handle(hardware.stream("other"))
    launch()
    with pytest.raises(OrderError):
        call(other)


def enqueue(hardware: Simulator, handle: int, launch: Any, box: Strided) -> None:
    """Launch work on a given stream, as a library does."""
    launch.queue(hardware._handles[handle])


def test_nvrtc_compiles_the_kernels(driver: GpuDriver) -> None:
    try:
        nvrtc.library()
    except nvrtc.NvrtcError as error:
        pytest.skip(str(error).replace("\n", " "))
    kernels = []
    for dtype in DTYPES:
        box = strided(put(driver, numbers((2, 3), dtype)))
        (launch,) = box.array.copier.combine("sum", box, [box, box])
        kernels.append(launch.function.kernel)
    assert b".entry" in nvrtc.compile_text(translation_unit(kernels), "compute_80")
