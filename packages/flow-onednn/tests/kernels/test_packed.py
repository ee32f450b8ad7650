"""Products of prepacked weights have the bits of products that pack them."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import DType, as_dtype, bfloat16, float32
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn import library, threads
from flow_onednn.kernels.convolution import packed as conv
from flow_onednn.kernels.packed import PACK, PRODUCT, attrs_of, constant_size, packed_size
from flow_onednn.kernels.partitioned_matmul import PartitionedMatmul
from flow_onednn.recipes import BY_OP, Problem

pytestmark = pytest.mark.usefixtures("onednn")
HALF = pytest.mark.skipif(not library.has_fast_half(), reason="no fast products of bfloat16")
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "gelu": lambda y: 0.5 * y * (1 + np.vectorize(erf)(y / sqrt(2))),
}


def product(
    rows: int, deep: int, columns: int, activation: str, transpose: bool, dtype: DType = float32
) -> Problem:
    weights = (columns, deep) if transpose else (deep, columns)
    types = tuple(tensor_type(s, dtype) for s in ((rows, deep), weights, (columns,)))
    attrs = {
        "transpose_a": False, "transpose_b": transpose, "alpha": 1.0, "activation": activation,
        "math": "",
    }  # fmt: skip
    out = tensor_type((rows, columns), dtype)
    return Problem("onednn_matmul", types, (out,), tuple(sorted(attrs.items())))


def run(op: str, attrs: dict[str, Any], arrays: list[Any], shape: tuple[int, ...]) -> Any:
    types = tuple(tensor_type(a.shape, as_dtype(a.dtype)) for a in arrays)
    query = KernelQuery(op, Attrs(attrs), types, (tensor_type(shape, types[0].dtype),))
    return run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)[0]


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("sizes", [(25, 784, 512), (7, 300, 257), (64, 256, 1000)])
def test_product_of_packed_weights(
    sizes: tuple[int, int, int], activation: str, transpose: bool
) -> None:
    asked = product(*sizes, activation, transpose)
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(t.shape, np.float32) for t in asked.inputs)
    right = b.T if transpose else b
    wanted = a.astype(float) @ right.astype(float) + bias
    size = packed_size(asked)
    if size is None:
        pytest.skip("this library gains nothing by packing such weights")
    attrs = attrs_of(asked)
    how = {**attrs, "transpose_b": transpose, "bias": True, "size": size}
    made = run(PACK, how, [b], (size,))
    found = run(PRODUCT, attrs, [a, made, bias], asked.outputs[0].shape)
    wanted = np.maximum(wanted, 0) if activation else wanted
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    direct = run(asked.op, asked.attrs, [a, b, bias], found.shape)
    np.testing.assert_array_equal(found, direct)


@HALF
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("sizes", [(1, 300, 257), (25, 784, 512), (515, 3072, 70)])
def test_product_of_packed_bfloat16_weights(
    sizes: tuple[int, int, int], activation: str, transpose: bool
) -> None:
    """The sum is in float32: only the result is rounded."""
    asked = product(*sizes, activation, transpose, bfloat16)
    rng = np.random.default_rng(0)
    operands = (rng.standard_normal(t.shape, np.float32) for t in asked.inputs)
    a, b, bias = (x.astype(bfloat16.numpy) for x in operands)
    right = b.T if transpose else b
    wanted = a.astype(float) @ right.astype(float) + bias.astype(float)
    size, attrs = constant_size(asked), attrs_of(asked)
    assert size is not None
    how = {**attrs, "transpose_b": transpose, "bias": True, "size": size}
    made = run(PACK, how, [b], (size,))
    found = run(PRODUCT, attrs, [a, made, bias], asked.outputs[0].shape)
    wanted = ACTIVATIONS[activation](wanted)
    np.testing.assert_allclose(found.astype(float), wanted, rtol=2**-8, atol=1e-4)


@HALF
@pytest.mark.parametrize("packed", [False, True])
def test_long_sums_of_bfloat16_have_the_bits_of_one_thread(packed: bool) -> None:
    """The library keeps such sums in a buffer, which it would divide among threads."""
    asked = product(1024, 3072, 768, "gelu", False, bfloat16)
    size = constant_size(asked)
    types = (asked.inputs[0], tensor_type((size or 0,), bfloat16), asked.inputs[2])
    how = tuple(attrs_of(asked).items())
    given = Problem(PRODUCT, types, asked.outputs, how) if packed else asked
    found = []
    for count in (1, 2, 3):
        with threads.limited(count):
            found.append(BY_OP[given.op](given))
    assert all(isinstance(made, PartitionedMatmul) for made in found)
    assert {len(made.parts) for made in found} == {8}


@HALF
def test_bfloat16_weights_are_packed_when_variables_change() -> None:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    flow.clear_default_session()

    @flow.global_function(function_config=config)
    def predict(x: tp.Numpy.Placeholder((5, 16))) -> tp.Numpy:  # type: ignore[valid-type]
        init = flow.random_uniform_initializer(-1.0, 1.0)
        hidden = flow.layers.dense(x, 24, flow.nn.relu, kernel_initializer=init, name="a")
        return flow.layers.dense(hidden, 3, kernel_initializer=init, name="b")

    plan = predict.plan()
    assert [task.type for task in plan.tasks].count(PRODUCT) == 2
    assert [task.type for task in plan.derived].count(PACK) == 2
    x = np.random.default_rng(1).uniform(-1, 1, (5, 16)).astype(np.float32)
    for factor in (1.0, 0.5):
        values = {n: factor * blob.numpy() for n, blob in flow.get_all_variables().items()}
        flow.load_variables(values)
        hidden = np.maximum(x @ values["a-weight"].T + values["a-bias"], 0)
        wanted = hidden @ values["b-weight"].T + values["b-bias"]
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(predict(x), wanted, rtol=0, atol=2e-2 * scale)


@pytest.mark.parametrize("dtype", [float32, pytest.param(bfloat16, marks=HALF)])
@pytest.mark.parametrize("special", [1.0, np.nan, np.inf])
def test_norms_of_filters(dtype: DType, special: float) -> None:
    shape = (70, 33, 3, 3)
    rng = np.random.default_rng(0)
    filters, bias = (rng.uniform(-1, 1, s).astype(dtype.numpy) for s in (shape, shape[:1]))
    filters[3, 4, 1, 1] = bias[5] = special
    attrs = {
        "kernel_size": (3, 3), "strides": (1, 1), "dilation_rate": (1, 1), "padding_before": (1, 1),
        "groups": 1, "weights_last": False, "math": "", "low": 0.0, "high": 6.0,
        "image": (1, 8, 8, 33), "result": (1, 8, 8, 70), "filters": shape, "bias": True,
        "residual": False, "bounded": False, "residual_bounded": False,
    }  # fmt: skip
    size = conv.packed_size(attrs, tensor_type(shape, dtype))
    types = tuple(tensor_type(x.shape, dtype) for x in (filters, bias))
    outputs = (tensor_type((size or 0,), dtype), tensor_type((2,), float32))
    query = KernelQuery(conv.PACK, Attrs({**attrs, "size": size}), types, outputs)
    _, norms = run_kernel(default_registry().find_kernel(query, "cpu"), query, [filters, bias])
    wanted = np.abs(filters.astype(float)).sum((1, 2, 3)).max(), np.abs(bias.astype(float)).max()
    np.testing.assert_allclose(norms, wanted, rtol=1e-6)
