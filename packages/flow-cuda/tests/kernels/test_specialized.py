"""Kernels compiled for constant sizes, and vectors of elements."""

from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit, on_device
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

from flow_core.base.dtypes import float32
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import KernelQuery
from flow_cuda.codegen.elementwise import make_group, make_layout
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels.elementwise import launch_group
from flow_cuda.kernels.move import merged_axes, move_box, widened

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
OPS = ("gather", "layer_norm", "one_hot", "pad", "reduce_sum", "softmax", "transpose")


class Specialized(CudaKit):
    """The kernel kit on a device that compiles kernels for the sizes of each launch."""

    preloaded = False

    def driver(self) -> Any:
        driver: Any = super().driver()
        driver.hardware.specializes = True
        return driver


@pytest.mark.slow
@pytest.mark.representative(
    "softmax|transpose", "a loop over a row, and index arithmetic, with sizes that become constants"
)
@pytest.mark.parametrize("op", OPS)
def test_constant_sizes_change_nothing(op: str) -> None:
    kit = Specialized()
    for dtype in kit.dtypes_of(op):
        for case in kit.cases(op, dtype)[:2]:
            if dtype in ("float32", "as_given"):
                kit.check(case)


def test_sizes_are_in_the_text_and_the_name() -> None:
    from flow_cuda.codegen.program import make_kernel

    kernel = make_kernel("fill", (("float *", "y"), ("i64", "n")), "y[n - 1] = 0;")
    five, six = kernel.specialized((None, 5)), kernel.specialized((None, 6))
    assert len({kernel.name, five.name, six.name}) == 3
    assert "const i64 n = 5ll;" in five.text()
    assert "i64 n_unused" in five.text()


def group(*shapes: tuple[int, ...]) -> Any:
    types = tuple(tensor_type(shape, float32) for shape in shapes)
    return make_group(KernelQuery("broadcast_add", {}, types, (types[0],)))


@pytest.mark.parametrize(
    ("shapes", "addresses", "width"),
    [
        (((6, 8), (6, 8)), (256, 512, 768), 4),
        (((6, 8), (6, 8)), (256, 512 + 8, 768), 2),
        (((6, 8), (6, 8)), (256, 512, 768 + 4), 1),
        (((6, 8), (8,)), (256, 512, 768), 4),
        (((6, 9), (9,)), (256, 512, 768), 1),
        (((6, 3, 8), (3, 1)), (256, 512, 768), 4),
        (((6, 8), (1,)), (256, 512 + 4, 768), 4),
    ],
)
def test_vectors_are_as_wide_as_addresses_and_sizes_allow(
    shapes: Any, addresses: tuple[int, ...], width: int
) -> None:
    assert make_layout(group(*shapes), addresses).width == width


@pytest.mark.representative(r"\[shapes1-4\]", "a broadcast row, at an address between two vectors")
@pytest.mark.parametrize("offset", [0, 4, 8])
@pytest.mark.parametrize("shapes", [((37,), (37,)), ((6, 8), (8,)), ((6, 3, 8), (3, 1))])
def test_vectors_and_their_tails_are_complete(shapes: Any, offset: int) -> None:
    driver, rng = GpuDriver(Simulator()), np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays = [on_device(driver, x) for x in values]
    out = driver.allocate(values[0].nbytes + 256)
    driver.copy_in(out.view(0, (out.nbytes,), np.uint8), np.full(out.nbytes, 7, np.uint8))
    y = out.view(offset, shapes[0], np.float32)
    launch_group(group(*shapes), (*arrays, y))()
    np.testing.assert_array_equal(driver.copy_out(y), values[0] + values[1])
    rest = driver.copy_out(out.view(offset + y.nbytes, (256 - offset,), np.uint8))
    assert (rest == 7).all()


def test_scalars_and_broadcast_inputs_do_not_collide() -> None:
    driver, rng = GpuDriver(Simulator()), np.random.default_rng(0)
    x, row = (rng.normal(size=shape).astype(np.float32) for shape in ((6, 8), (8,)))
    types = tuple(tensor_type(value.shape, float32) for value in (x, row))
    body = (
        ("scalar_mul", (-1,), {"operand": 3.0}, (6, 8), "float32"),
        ("broadcast_add", (0, -2), {}, (6, 8), "float32"),
    )
    query = KernelQuery("fused", {"body": body, "outputs": (1,)}, types, (types[0],))
    out = on_device(driver, np.zeros_like(x))
    launch_group(make_group(query), (on_device(driver, x), on_device(driver, row), out))()
    np.testing.assert_array_equal(driver.copy_out(out), x * np.float32(3) + row)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_boxes_in_shifted_arrays_are_copied(shift: int) -> None:
    """Offset and address cancel each other modulo 16, but neither is a multiple of 16."""
    driver = GpuDriver(Simulator())
    whole = on_device(driver, np.arange(64, dtype=np.float32))
    x, y = (
        whole.part(4 * (4 - shift), (40,), np.float32),
        on_device(driver, np.zeros(32, np.float32)),
    )
    for launch in move_box(x, y, (8,), ((1,), (1,)), (shift, 0)):
        launch()
    np.testing.assert_array_equal(driver.copy_out(y)[:8], np.arange(4, 12))


def test_boxes_move_in_the_widest_units() -> None:
    steps = ((128, 16, 1), (256, 16, 1))
    axes = merged_axes((4, 8, 16), steps)
    assert axes == [(4, 128, 256), (128, 1, 1)]
    assert widened(axes, 4, (256, 512)).nbytes == 16
    assert widened(axes, 4, (256, 512 + 8)).nbytes == 8
    assert widened(axes, 2, (256, 512 + 2)).nbytes == 2
    assert widened([(4, 9, 16), (8, 1, 1)], 4, (0, 0)).nbytes == 4
    assert widened([(4, 1, 16), (8, 4, 1)], 4, (0, 0)).nbytes == 4


@pytest.mark.parametrize("first", [(0, 0), (4, 0), (1, 3)])
def test_boxes_with_offsets_are_copied(first: tuple[int, int]) -> None:
    driver = GpuDriver(Simulator())
    values = np.arange(10 * 16, dtype=np.float32)
    x, y = on_device(driver, values), on_device(driver, np.zeros(200, np.float32))
    for launch in move_box(x, y, (5, 8), ((16, 1), (24, 1)), first):
        launch()
    wanted = np.zeros(200, np.float32)
    for row in range(5):
        source = values[first[0] + 16 * row :][:8]
        wanted[first[1] + 24 * row :][:8] = source
    np.testing.assert_array_equal(driver.copy_out(y), wanted)
