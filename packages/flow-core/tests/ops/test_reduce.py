"""Reductions beyond the generic kit: long and odd shapes, accuracy, no copies."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import as_dtype
from flow_core.builtin.numpy_kernels.math import reduce
from flow_core.ops.math import reduce as ops
from flow_core.plugins.specs import BindContext, load
from flow_core.testing.checks import query

SPECS = {spec.type: spec for spec in ops.OPS}
KERNELS = {kernel.op: kernel for kernel in reduce.KERNELS}


def bind(op: str, *arrays: Any, **attrs: Any) -> tuple[list[Any], Any]:
    """Return the launches of a kernel and the output that they write."""
    asked = query(SPECS[op], arrays, attrs)
    out = np.full(asked.outputs[0].shape, 77, asked.outputs[0].dtype.numpy)
    size = KERNELS[op].workspace
    workspace = np.full(size(asked), 0xA5, np.uint8) if size else None
    return list(load(KERNELS[op].load)(BindContext(asked, arrays, (out,), workspace))), out


def run(op: str, *arrays: Any, **attrs: Any) -> Any:
    """Run a kernel and return its output."""
    launches, out = bind(op, *arrays, **attrs)
    for launch in launches:
        launch()
    return out


@pytest.mark.slow
@settings(max_examples=80)
@given(st.data())
def test_any_axes_of_any_shape(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), min_size=1, max_size=5)))
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    op = data.draw(st.sampled_from(["reduce_sum", "reduce_max", "reduce_min", "reduce_any"]))
    keepdims = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from([np.float64, np.float16, np.int32, np.int8]))
    x = np.random.default_rng(3).integers(-3, 4, shape).astype(dtype)
    reference = SPECS[op].reference
    assert reference is not None
    found = run(op, x, axis=axes, keepdims=keepdims)
    np.testing.assert_array_equal(found, reference(x, axes, keepdims))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((70_000,), (0,)), ((9_000, 7), (0,)), ((4_096, 3), (0,)), ((8_193, 2), (0,)),
        ((3, 9_000), (1,)), ((40, 6, 300), (0, 2)), ((5_000, 3, 2), (0, 2)),
        ((3, 600, 4), (1,)), ((3, 5_000, 4), (1,)), ((2, 3, 4, 5), (0, 2)),
    ],
)  # fmt: skip
def test_long_float32_sums_are_accurate(shape: Any, axes: Any) -> None:
    x = np.random.default_rng(4).uniform(0, 1, shape).astype(np.float32)
    expected = x.sum(axes, dtype=np.float64)
    np.testing.assert_allclose(
        run("reduce_sum", x, axis=axes).reshape(expected.shape), expected, 3e-6
    )


def test_float16_sums_accumulate_in_float32() -> None:
    x = np.full((5000, 2), 0.1, np.float16)
    expected = float(x[0, 0]) * 5000
    np.testing.assert_allclose(run("reduce_sum", x, axis=(0,)), expected, 1e-3)


def test_gradients_of_products_with_zeros() -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0]])
    found = run("reduce_prod_grad", x, np.array([1.0, 1.0]), axis=(1,))
    np.testing.assert_array_equal(found, [[0, 6, 0], [0, 0, 0]])


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_max", "reduce_any", "reduce_prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_launches_make_no_copies(op: str, axes: tuple[int, ...]) -> None:
    launches, _ = bind(op, np.ones((100, 512), np.float32), axis=axes)
    for launch in launches:
        launch()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for launch in launches:
            launch()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # numpy's iterator over the axes, freed when the call returns
    assert peak < 2048


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_means_of_integers_do_not_overflow(dtype: Any, axes: tuple[int, ...]) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([[high] * 3, [low] * 3, [low, high, -2], [7, -8, 0]], dtype)
    total = x.astype(object).sum(axes, keepdims=True)
    count = x.size // total.size
    exact = [[abs(n) // count * (1 if n > 0 else -1) for n in row] for row in total]
    np.testing.assert_array_equal(run("reduce_mean", x, axis=axes, keepdims=True), exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_of_16_bits_are_summed_in_float32(dtype: str) -> None:
    x = np.random.default_rng(0).uniform(90, 110, (3, 4096)).astype(as_dtype(dtype).numpy)
    found = run("reduce_mean", x, axis=(1,), keepdims=False)
    np.testing.assert_allclose(found.astype(float), x.astype(float).mean(1), rtol=4e-3)


def test_a_part_of_a_mean_divides_by_the_elements_of_all_devices() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = run("reduce_mean", x, axis=(0,), keepdims=False, count=12)
    np.testing.assert_allclose(found, x.sum(0) / 12)
