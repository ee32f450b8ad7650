"""Products of prepacked weights have the bits of products that pack them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn.kernels.packed import PACK, PRODUCT, attrs_of, packed_size
from flow_onednn.recipes import Problem

pytestmark = pytest.mark.usefixtures("onednn")


def product(rows: int, deep: int, columns: int, activation: str, transpose: bool) -> Problem:
    weights = (columns, deep) if transpose else (deep, columns)
    types = tuple(tensor_type(s, float32) for s in ((rows, deep), weights, (columns,)))
    attrs = {
        "transpose_a": False, "transpose_b": transpose, "alpha": 1.0, "activation": activation,
        "math": "",
    }  # fmt: skip
    out = tensor_type((rows, columns), float32)
    return Problem("onednn_matmul", types, (out,), tuple(sorted(attrs.items())))


def run(op: str, attrs: dict[str, Any], arrays: list[Any], shape: tuple[int, ...]) -> Any:
    types = tuple(tensor_type(a.shape, float32) for a in arrays)
    query = KernelQuery(op, Attrs(attrs), types, (tensor_type(shape, float32),))
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
