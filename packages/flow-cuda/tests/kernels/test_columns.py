"""Two-step sums over rows, for which the kit's samples are too short."""

from typing import Any

import numpy as np
import pytest
from cuda_cases import on_device, simulated_registry
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels.columns import LEAST, MOST_PARTS, STRETCH, Matrix

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
REGISTRY = simulated_registry()


def launched(op: str, arrays: Any, count: int, kind: str, wide: tuple[int, ...], **attrs: Any):  # type: ignore[no-untyped-def]
    """Return the outputs of an op and its reference; inputs in ``wide`` have another type."""
    spec, driver = REGISTRY.ops[op], GpuDriver(Simulator())
    attrs = {**spec.attrs, **attrs}
    types = [np.float32 if i in wide else as_dtype(kind).numpy for i in range(len(arrays))]
    host = [np.asarray(x).astype(t) for x, t in zip(arrays, types, strict=True)]
    exact = spec.reference(*(x.astype(float) for x in host), **attrs)  # type: ignore[misc]
    exact = exact if isinstance(exact, tuple) else (exact,)
    given = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in host)
    made = tuple(tensor_type(np.shape(x), as_dtype(kind)) for x in exact[:count])
    query = KernelQuery(op, attrs, given, made)
    kernel = REGISTRY.find_kernel(query, "gpu")
    size = kernel.workspace(query)  # type: ignore[misc]
    workspace = driver.allocate(max(1, size)).view(0, (size,), np.uint8)
    inputs = tuple(on_device(driver, x) for x in host)
    outputs = tuple(on_device(driver, np.full(t.shape, 7, t.dtype.numpy)) for t in made)
    context = BindContext(query, inputs, outputs, workspace=workspace)
    launches: Any = kernel.load(context)  # type: ignore[operator]
    for launch in launches if isinstance(launches, tuple) else (launches,):
        launch()
    return size, [driver.copy_out(y).astype(float) for y in outputs], exact


SHAPES = [(LEAST, 2), (STRETCH * 3 + 5, 33), (STRETCH * MOST_PARTS + 200, 3), (40, 5, 8)]


@pytest.mark.representative(
    r"\[(float64-shape0|float32-shape1|bfloat16-shape2|float32-shape3)\]",
    "each type, and each way to divide the rows",
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
def test_sums_over_the_first_axes(shape: tuple[int, ...], kind: str) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    axes = tuple(range(len(shape) - 1))
    size, (found,), (exact,) = launched("reduce_sum", (x,), 1, kind, (), axis=axes, keepdims=False)
    assert size
    tolerance = 2e-2 if kind == "bfloat16" else 1e-4
    np.testing.assert_allclose(found, exact, tolerance, tolerance * np.sqrt(shape[0]))


@pytest.mark.representative(r"\[bfloat16\]", "the type whose sums are wider than its elements")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_gradients_of_layer_norm_parameters(kind: str) -> None:
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=(2, 150, 24)), rng.normal(size=(2, 150, 24))
    mean, inverse = x.mean(-1), 1 / x.std(-1)
    near = {"rtol": 3e-2, "atol": 0.3} if kind == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
    axes = {"begin_norm_axis": -1, "begin_params_axis": -1}
    size, (found,), (exact, *_) = launched(
        "layer_norm_gamma_grad", (dy, x, mean, inverse), 1, kind, (2, 3), **axes
    )
    assert size
    np.testing.assert_allclose(found, exact, **near)
    gamma = rng.normal(size=24)
    size, found, exact = launched(
        "layer_norm_param_grad", (dy, x, gamma), 3, kind, (), begin_params_axis=-1
    )
    assert size
    for have, want in zip(found, exact, strict=True):
        np.testing.assert_allclose(have, want, **near)


@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_of_layer_norm_parameters_of_a_few_rows(rows: int) -> None:
    rng = np.random.default_rng(2)
    x, dy, gamma = rng.normal(size=(rows, 24)), rng.normal(size=(rows, 24)), rng.normal(size=24)
    _, found, exact = launched(
        "layer_norm_param_grad", (dy, x, gamma), 3, "float32", (), begin_params_axis=-1
    )
    for have, want in zip(found, exact, strict=True):
        np.testing.assert_allclose(have, want, 1e-4, 1e-4)


def test_short_matrices_and_integers_are_summed_in_one_step() -> None:
    assert not Matrix(LEAST - 1, 8, as_dtype("float32")).tall
    assert not Matrix(1000, 8, as_dtype("int32")).tall
    assert not Matrix(1000, 1, as_dtype("float32")).tall
