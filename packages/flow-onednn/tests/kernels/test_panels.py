"""Products of few rows with weights in panels, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn import threads
from flow_onednn.kernels.few_rows import PRODUCT
from flow_onednn.native import compiler
from flow_onednn.panel_layout import pack, packed_columns


@pytest.fixture(autouse=True)
def _needs_the_loop(onednn: None) -> None:
    if not compiler.available():
        pytest.skip("there is no C compiler")


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, 1, shape).astype(np.float32)


def run(x: Array, w: Array, *bias: Array, activation: str = "") -> Array:
    packed = np.empty(len(w) * packed_columns(w.shape[1]), np.float32)
    pack(w, packed)
    arrays, result = [x, packed, *bias], (len(x), w.shape[1])
    types = tuple(tensor_type(a.shape, float32) for a in arrays)
    attrs = Attrs({"columns": result[1], "activation": activation})
    query = KernelQuery(PRODUCT, attrs, types, (tensor_type(result, float32),))
    found: Array = run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)[0]
    return found


@pytest.mark.parametrize("rows", [*range(1, 14), 25])
@pytest.mark.parametrize("deep", [1, 2, 37])
@pytest.mark.parametrize(
    "columns", [1, 8, 15, 16, 17, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 300]
)
def test_products_of_all_remainders(rows: int, deep: int, columns: int) -> None:
    x, w, bias = numbers(rows, deep), numbers(deep, columns), numbers(columns)
    want = x.astype(float) @ w.astype(float)
    np.testing.assert_allclose(run(x, w), want, 1e-5, 1e-5)
    found = run(x, w, bias, activation="relu")
    np.testing.assert_allclose(found, np.maximum(want + bias, 0), 1e-5, 1e-5)


@pytest.mark.parametrize("columns", [10, 512])
def test_bits_depend_on_neither_threads_nor_other_rows(columns: int) -> None:
    x, w, bias = numbers(13, 784), numbers(784, columns), numbers(columns)
    found = []
    for count in (1, 2, 3, 7):
        with threads.limited(count):
            found.append(run(x, w, bias))
            rows = [run(row[None], w, bias) for row in x]
            found.append(np.concatenate(rows))
    assert all(np.array_equal(found[0], other) for other in found)


def test_special_values() -> None:
    x = np.array([[np.inf, 1, 0], [np.nan, 1, -0.0]], np.float32)
    w = np.array([[1, 1, 1], [0, 1, 1], [-1, 1, 1], [1, 1, np.inf]], np.float32)
    want = [[np.inf, np.nan, 0, np.nan], [np.nan] * 4]
    np.testing.assert_array_equal(run(x, w.T, activation="relu"), want)
