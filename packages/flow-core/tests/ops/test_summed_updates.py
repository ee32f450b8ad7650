"""Fused gradient updates against the products, sums and update that they replace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import as_dtype
from flow_core.builtin.numpy_kernels.training import summed_updates
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.ir.update_rules import COMMON
from flow_core.ops.training.summed_updates import ROWS, products, update
from flow_core.plugins.host import load_plugins
from flow_core.plugins.specs import KernelQuery, KernelSpec
from flow_core.testing.checks import run_kernel

REGISTRY = load_plugins(Settings(plugins=()))

SHAPES = [(400, 25, 512), (300, 7, 300), (5, 3, 4), (33, 0, 2), (1000, 1, 3)]
"""Rows of the variable, length of the sums, columns."""


def find(query: KernelQuery) -> KernelSpec:
    return REGISTRY.find_kernel(query, "cpu")


def asked(name: str, shape: tuple[int, int, int], dtype: str, **attrs: Any) -> KernelQuery:
    row, kind = ROWS[name], as_dtype(dtype)
    rows, deep, columns = shape
    wide, number = kind.accumulate, tensor_type((), as_dtype("float32"))
    model = tensor_type((rows, columns), kind)
    states = (tensor_type((rows, columns), wide),) * len(row.states)
    left = (deep, rows) if attrs.get("transpose_a", True) else (rows, deep)
    pair = (tensor_type(left, kind), tensor_type((deep, columns), kind))
    given = {**COMMON, **row.attrs, "transpose_a": True, "transpose_b": False, "alpha": 1.0}
    inputs = (model, number, *states, *pair * 3)
    return KernelQuery(name, Attrs({**given, "parts": 3, **attrs}), inputs, (), find)


def drawn(query: KernelQuery) -> list[Any]:
    """Return positive values for variable, rate and states, and operands of both signs."""
    rng, first = np.random.default_rng(0), len(query.inputs) - 2 * query.attrs["parts"]
    arrays = [rng.random(t.shape) + 0.1 for t in query.inputs[:first]]
    arrays += [rng.standard_normal(t.shape) for t in query.inputs[first:]]
    types = (t.dtype.numpy for t in query.inputs)
    return [np.asarray(x).astype(t) for x, t in zip(arrays, types, strict=True)]


def launch(query: KernelQuery, arrays: list[Any]) -> None:
    run_kernel(find(query), query, arrays)


def apart(query: KernelQuery, arrays: list[Any]) -> None:
    """Run each product separately, then their sum, then the update."""
    operands = arrays[-6:]
    terms = [
        run_kernel(find(one), one, operands[2 * k : 2 * k + 2])[0]
        for k, one in enumerate(products(query))
    ]
    total = terms[0] + terms[1] + terms[2]
    launch(update(query), [arrays[0], total, *arrays[1:-6]])


@pytest.mark.representative(
    r"-shape[23]-|\[summed_sgd_update-shape0-float32\]",
    "each update and type on a small product and on an empty one; a large product",
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROWS)
def test_result_has_the_bits_of_separate_products_sum_and_update(
    name: str, shape: tuple[int, int, int], dtype: str
) -> None:
    query = asked(name, shape, dtype, weight_decay=0.01, l2=0.1)
    wanted, found = drawn(query), drawn(query)
    apart(query, wanted)
    launch(query, found)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(found[0], drawn(query)[0])


@pytest.mark.parametrize("attrs", [{"alpha": 0.5}, {"transpose_a": False}, {"scale": 0.25}])
def test_bits_match_for_all_product_attributes(attrs: dict[str, Any]) -> None:
    query = asked("summed_sgd_update", (400, 25, 512), "float32", **attrs)
    wanted, found = drawn(query), drawn(query)
    apart(query, wanted)
    launch(query, found)
    np.testing.assert_array_equal(found[0], wanted[0])


def test_rows_are_not_divided_if_that_changes_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = asked("summed_sgd_update", (784, 25, 512), "float32")
    kernel = find(query)
    assert kernel.workspace is not None
    whole = 4 * 784 * 512
    monkeypatch.setattr(summed_updates, "_same_bits", lambda *_: True)
    assert kernel.workspace(query) < whole / 2
    monkeypatch.setattr(summed_updates, "_same_bits", lambda *_: False)
    assert kernel.workspace(query) >= whole


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float16_rows_are_never_divided(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.matmul` rounds their products differently from the kernel, which few samples reveal."""
    query = asked("summed_sgd_update", (784, 25, 512), dtype)
    kernel = find(query)
    assert kernel.workspace is not None
    monkeypatch.setattr(summed_updates, "_same_bits", lambda *_: True)
    assert kernel.workspace(query) >= 2 * 784 * 512


def test_foreign_kernels_compute_undivided_products() -> None:
    """Dividing rows is limited to numpy: the bits of other kernels are unknown."""
    query = asked("summed_sgd_update", (784, 25, 512), "float32")
    kernel = find(query)
    assert kernel.workspace is not None

    def renamed(one: KernelQuery) -> KernelSpec:
        found = find(one)
        return replace(found, name="other.matmul") if one.op == "matmul" else found

    assert kernel.workspace(replace(query, find=renamed)) >= 4 * 784 * 512
