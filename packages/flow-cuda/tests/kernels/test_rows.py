"""Rows in registers, long rows, vectors and windows of each width, against the references."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit, on_device
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext, InferContext, KernelQuery
from flow_cuda.device.launch import KernelLaunch
from flow_cuda.driver.gpu import GpuDriver

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


def launched(op: str, inputs: list[Any], attrs: dict[str, Any]) -> tuple[list[Any], str]:
    """Run an op on a simulated device; return its results and the text of its kernel."""
    registry, driver = CudaKit.shared_registry(), GpuDriver(Simulator())
    spec = registry.ops[op]
    attrs = {**spec.attrs, **attrs}
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in inputs)
    outputs = tuple(spec.infer(InferContext(op, op, types, attrs)))
    query = KernelQuery(op, attrs, types, outputs, partial(registry.find_kernel, device_type="gpu"))
    kernel = registry.find_kernel(query, "gpu")
    results = tuple(on_device(driver, np.zeros(t.shape, t.dtype.numpy)) for t in outputs)
    given = tuple(on_device(driver, x) for x in inputs)
    launch: Any = kernel.load(BindContext(query, given, results))  # type: ignore[operator]
    assert isinstance(launch, KernelLaunch)
    launch()
    return [driver.copy_out(y) for y in results], launch.function.kernel.body


def compared(op: str, inputs: list[Any], template: str, **attrs: Any) -> None:
    """Compare the results with those of the reference in float64, and check the template."""
    spec = CudaKit.shared_registry().ops[op]
    found, body = launched(op, inputs, attrs)
    assert f"<{template}" in body, body
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
    with np.errstate(all="ignore"):
        wanted = spec.reference(*wide, **{**spec.attrs, **attrs})
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    close = 2e-3 if inputs[0].dtype == np.float16 else 2e-6
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, close, close)


def rows(count: int, n: int, dtype: str = "float32", special: bool = True) -> Any:
    """Random rows; the second has a NaN, the third an infinity, the fourth only -inf."""
    x = np.random.default_rng(n).normal(size=(count, n)).astype(dtype)
    for row, value in ((1, np.nan), (2, np.inf)) if special and count > 3 else ():
        x[row, n // 2] = value
    if special and count > 3:
        x[3] = -np.inf
    return x


@pytest.mark.parametrize(
    ("n", "dtype", "template"),
    [
        (1, "float32", "float, 1, 1"), (7, "float32", "float, 1, 1"),
        (130, "float32", "float, 5, 2"), (500, "float32", "float, 8, 4"),
        (511, "float32", "float, 32, 1"),
        (513, "float32", "float, 0, 1"), (1028, "float32", "float, 0, 4"),
        (520, "float16", "f16, 0, 8"), (264, "float16", "f16, 3, 8"),
    ],
)  # fmt: skip
def test_softmax(n: int, dtype: str, template: str) -> None:
    compared("softmax", [rows(40, n, dtype)], template)


def test_rows_along_another_axis_are_not_adjacent() -> None:
    compared("softmax", [rows(24, 20)], "float, 0, 1", axis=0)


@pytest.mark.parametrize("n", [10, 500, 513, 1028])
def test_loss_of_sparse_labels(n: int) -> None:
    labels = np.random.default_rng(0).integers(0, n, 9).astype(np.int32)
    compared("sparse_softmax_cross_entropy", [rows(9, n), labels], "float, ", depth=n)


@pytest.mark.parametrize("n", [500, 1028])
@pytest.mark.parametrize("op", ["softmax_grad", "log_softmax_grad"])
def test_gradients(op: str, n: int) -> None:
    y = rows(9, n, special=False)
    compared(op, [y, rows(9, n)], f"float, {0 if n > 512 else 8}, 4")


@pytest.mark.parametrize(
    ("shape", "norm", "params", "template"),
    [
        ((9, 500), 1, 1, "float, 8, 4"), ((9, 511), 1, 1, "float, 32, 1"),
        ((9, 1028), 1, 1, "float, 0, 4"), ((9, 4, 12), 1, 2, "float, 1, 4"),
        ((2, 5, 14), 2, 1, "float, 1, 2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has", [(True, True), (True, False), (False, False)])
def test_layer_norm(
    shape: tuple[int, ...], norm: int, params: int, template: str, has: tuple[bool, bool]
) -> None:
    """Parameters have the size of a row, of a part of it, or of several rows."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * 3 + 2).astype(np.float32)
    given = [rng.normal(size=shape[params:]).astype(np.float32) for used in has if used]
    scale, center = has
    compared(
        "layer_norm", [x, *given], template, begin_norm_axis=norm, begin_params_axis=params,
        scale=scale, center=center, epsilon=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "width"), [(16, 4), (6, 2), (3, 1)], ids=["vectors", "pairs", "elements"]
)
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_pools_of_channels_last(mode: str, channels: int, width: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, 9, 8, channels)).astype(np.float32)
    x[0, 4, 4, 0], x[1, 2, 3, channels - 1] = np.nan, np.inf
    attrs = pool(3, 2, "channels_last")
    compared(f"{mode}_pool_2d", [x], f"float, {width}, u32, 3", **attrs)


@pytest.mark.parametrize(("size", "unrolled"), [(2, 2), (3, 3), (5, 5), (7, 4)])
def test_windows_of_each_size(size: int, unrolled: int) -> None:
    x = np.random.default_rng(size).normal(size=(2, 3, 11, 13)).astype(np.float32)
    x[1, 2, 5, 5] = np.nan
    compared("max_pool_2d", [x], f"float, 1, u32, {unrolled}", **pool(size, 2, "channels_first"))


def pool(size: int, stride: int, data_format: str) -> dict[str, Any]:
    return {
        "pool_size": (size, size), "strides": (stride, stride), "padding": "customized",
        "padding_before": (1, 1), "padding_after": (1, 1), "data_format": data_format,
    }  # fmt: skip
