"""Products of one and two rows with transposed weights, against numpy in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float32
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_onednn import threads
from flow_onednn.kernels import few_rows, partitioned_matmul
from flow_onednn.kernels.few_rows import FewRows
from flow_onednn.native import compiler
from flow_onednn.recipes import problem

PLAIN: Mapping[str, Any] = {
    "transpose_a": False, "transpose_b": True, "alpha": 1.0, "activation": "",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_the_loop(onednn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiler.available():
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(few_rows, "_least_rows", lambda: 1)  # also without AVX-512


@contextlib.contextmanager
def pool_of(count: int) -> Iterator[None]:
    pool, before = threads.runtime(), threads.count()
    if pool is not None:
        pool.omp_set_num_threads(count)
    try:
        yield
    finally:
        if pool is not None:
            pool.omp_set_num_threads(before)


def product(x: Array, w: Array, *bias: Array, **how: Any) -> Array:
    """Run the loop on arrays; the result is NaN before."""
    types = tuple(tensor_type(a.shape, float32) for a in (x, w, *bias))
    out = np.full((len(x), len(w)), np.nan, np.float32)
    query = KernelQuery(
        "onednn_matmul", Attrs({**PLAIN, **how}), types, (tensor_type(out.shape, float32),)
    )
    made = few_rows.build(problem(query))
    assert isinstance(made, FewRows)
    for launch in made.bind(BindContext(query, (x, w, *bias), (out,), None)):
        launch()
    return out


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, 1, shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("deep", [0, 1, 15, 16, 37, 784])
@pytest.mark.parametrize("columns", [4, 5, 7, 8, 9, 200])
def test_products_of_all_remainders(rows: int, deep: int, columns: int) -> None:
    x, w, bias = numbers(rows, deep), numbers(columns, deep), numbers(columns)
    want = x.astype(float) @ w.astype(float).T
    np.testing.assert_allclose(product(x, w), want, 1e-5, 1e-4)
    np.testing.assert_allclose(product(x, w, alpha=-0.5), -0.5 * want, 1e-5, 1e-4)
    found = product(x, w, bias, activation="relu")
    np.testing.assert_allclose(found, np.maximum(want + bias, 0), 1e-5, 1e-4)


@pytest.mark.parametrize("columns", [4, 5, 6, 7, 515])
@pytest.mark.parametrize("deep", [1, 16, 1031])
def test_bits_depend_on_neither_threads_nor_other_rows(columns: int, deep: int) -> None:
    x, w = numbers(2, deep), numbers(columns, deep)
    found = []
    for count in (1, 2, 3):
        with pool_of(count):
            found += [product(x, w), np.concatenate([product(row[None], w) for row in x])]
    found.append(np.stack([product(x, w[i : i + 4])[:, 0] for i in range(columns - 3)], 1))
    assert all(np.array_equal(found[0][:, : other.shape[1]], other) for other in found)


def test_special_values() -> None:
    x = np.array([[np.inf, 1, 0], [np.nan, 1, -0.0]], np.float32)
    w = np.array([[1, 1, 1], [0, 1, 1], [-1, 1, 1], [1, 1, np.inf]], np.float32)
    want = [[np.inf, np.nan, 0, np.nan], [np.nan] * 4]
    np.testing.assert_array_equal(product(x, w, activation="relu"), want)


@pytest.mark.parametrize(
    ("rows", "how"),
    [
        (3, {}),
        (1, {"transpose_b": False}),
        (1, {"activation": "gelu"}),
        (1, {"accumulate": True}),
        (1, {"math": "bfloat16"}),
    ],
)
def test_other_products_are_those_of_the_library(rows: int, how: dict[str, Any]) -> None:
    types = tuple(tensor_type(shape, float32) for shape in ((rows, 8), (8, 8)))
    query = KernelQuery(
        "onednn_matmul", Attrs({**PLAIN, **how}), types, (tensor_type((rows, 8), float32),)
    )
    assert few_rows.build(problem(query)) is None
    assert not isinstance(partitioned_matmul.build(problem(query)), FewRows)
