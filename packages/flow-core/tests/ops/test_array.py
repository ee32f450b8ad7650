"""Array ops beyond the generic kit: large inputs, in-place outputs, memory, steps."""

from __future__ import annotations

import tracemalloc
from importlib import import_module

import numpy as np
import pytest

from flow_core.base.errors import DataError, InferenceError
from flow_core.plugins.specs import BindContext
from flow_core.testing.checks import query, run_kernel

FAMILIES = (
    "array.shape",
    "array.select",
    "array.pad",
    "array.index",
    "array.scatter",
    "array.sort",
    "array.source",
)
SPECS = {s.type: s for f in FAMILIES for s in import_module(f"flow_core.ops.{f}").OPS}
KERNELS = {
    k.op: k for f in FAMILIES for k in import_module(f"flow_core.builtin.numpy_kernels.{f}").KERNELS
}


def run(op, *inputs, at_step=0, **attrs):
    asked = query(SPECS[op], inputs, attrs)
    return run_kernel(KERNELS[op], asked, inputs, step=at_step)[0]


def bind(op, *inputs, into=None, **attrs):
    """Bind an op; its outputs are new arrays or overwrite the input ``into``."""
    asked = query(SPECS[op], inputs, attrs)
    outputs = tuple(np.empty(t.shape, t.dtype.numpy) for t in asked.outputs)
    outputs = outputs if into is None else (inputs[into],)
    kernel = KERNELS[op]
    workspace = np.empty(kernel.workspace(asked), np.uint8) if kernel.workspace else None
    bound = kernel.load(BindContext(asked, inputs, outputs, workspace, np.array(0, np.int64), 3))
    return (bound,) if callable(bound) else tuple(bound), outputs


def test_every_op_has_a_kernel():
    assert set(SPECS) == set(KERNELS)


@pytest.mark.parametrize("width", [1, 3, 100, 128, 200])
@pytest.mark.parametrize("outside", [False, True])
def test_segment_sums_of_all_widths(width, outside):
    rng = np.random.default_rng(width)
    data = rng.integers(-4, 5, (1000, width)).astype(np.float32)
    ids = rng.integers(-3 if outside else 0, 20, 1000).astype(np.int32)
    expected = np.stack([data[ids == i].sum(0) for i in range(17 if outside else 20)])
    found = run("unsorted_segment_sum", data, ids, axis=0, num_segments=len(expected))
    np.testing.assert_array_equal(found, expected)


def test_repeated_launch_starts_from_zero():
    data, ids = np.ones((5, 2), np.float32), np.zeros(5, np.int32)
    launches, (out,) = bind("unsorted_segment_sum", data, ids, axis=0, num_segments=1)
    for _ in range(2):
        for launch in launches:
            launch()
    np.testing.assert_array_equal(out, [[5, 5]])


INPLACE = {
    "slice_update": ((6, 4), (2, 4), {"start": (1, 0), "stop": (3, 4), "step": (1, 1)}),
    "tril": ((4, 4), None, {"diagonal": 0}),
    "fused_scale_tril": ((4, 4), None, {"diagonal": 1, "integer_scale_value": 3}),
}


@pytest.mark.parametrize("op", INPLACE)
def test_in_place_output(op):
    shape, more, attrs = INPLACE[op]
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, s).astype(np.float32) for s in (shape, more) if s]
    expected = run(op, *[x.copy() for x in inputs], **attrs)
    launches, (out,) = bind(op, *inputs, into=0, **attrs)
    for launch in launches:
        launch()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("op", ["tensor_scatter_nd_add", "tensor_scatter_nd_update"])
def test_scatter_in_place(op):
    params = np.arange(12, dtype=np.float32).reshape(4, 3)
    updates, index = np.full((2, 3), 50, np.float32), np.array([[3], [1]], np.int64)
    expected = run(op, params.copy(), updates, index)
    launches, (out,) = bind(op, params, updates, index, into=0)
    for launch in launches:
        launch()
    np.testing.assert_array_equal(out, expected)


BUFFERS = 150_000
"""Bound of numpy's buffers for broadcast operands, 8192 elements each; inputs are larger."""


def _cases():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (200, 300)).astype(np.float32)
    index = rng.integers(0, 20, 50000).astype(np.int32)
    rows = rng.uniform(-1, 1, (50000, 20)).astype(np.float32)
    wide = rng.uniform(-1, 1, (2000, 130)).astype(np.float32)
    where = {"start": (0, 299), "stop": (200, -301), "step": (1, -1)}
    yield "transpose", (x,), {"perm": (1, 0)}
    yield "concat", (x, x), {"axis": 1}
    yield "slice", (x,), where
    yield "pad", (x,), {"padding_before": (1, 2), "padding_after": (0, 3)}
    yield "tril", (x,), {"diagonal": 0}
    yield "gather", (x, index), {"axis": 0}
    yield "unsorted_segment_sum", (rows, index), {"axis": 0, "num_segments": 200}
    yield "unsorted_segment_sum", (wide, index[:2000]), {"axis": 0, "num_segments": 200}
    yield "sort", (x,), {"direction": "DESCENDING"}
    yield "arg_sort", (x,), {"direction": "ASCENDING"}
    yield "argmax", (x,), {}
    yield "top_k", (x,), {"k": 5}
    yield "one_hot", (index,), {"depth": 20, "dtype": "float32"}
    yield "in_top_k", (index[:200], x), {"k": 5}
    yield "constant", (), {"value": 1.0, "shape": (200, 300), "dtype": "float32"}
    yield "bernoulli", (np.abs(x),), {}
    yield "generate_random_batch_permutation_indices", (rows,), {}
    for kind in ("random_normal", "random_uniform"):
        attrs = {"distribution": (kind, 0.0, 1.0), "shape": (200, 300), "dtype": "float32"}
        yield "random_values", (), attrs


CASES = list(_cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_step_allocates_almost_nothing(case):
    op, inputs, attrs = case
    launches, _ = bind(op, *inputs, **attrs)
    for launch in launches:
        launch()
    tracemalloc.start()
    try:
        for launch in launches:
            launch()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BUFFERS


def test_one_hot_rejects_an_index_out_of_range():
    with pytest.raises(DataError, match=r"found: *4") as caught:
        run("one_hot", np.array([0, 4], np.int32), depth=4, dtype="float32")
    assert "0 <= index < 4" in str(caught.value)


def test_random_numbers_differ_between_steps_only():
    half = np.full(200, 0.5, np.float32)
    first, again, later = (run("bernoulli", half, at_step=step) for step in (0, 0, 1))
    assert (first == again).all()
    assert (first != later).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 0.1), (1.0, 1.001)])
def test_uniform_numbers_do_not_round_to_their_upper_bound(low, high, dtype):
    attrs = {"distribution": ("random_uniform", low, high), "shape": (1 << 16,), "dtype": dtype}
    found = run("random_values", **attrs).astype(np.float64)
    assert low - 1e-3 <= found.min() <= found.max() < high


def test_random_values_have_their_distribution():
    attrs = {"shape": (1 << 16,), "dtype": "float64"}
    normal = run("random_values", distribution=("random_normal", 2.0, 3.0), **attrs)
    assert abs(normal.mean() - 2) < 0.05
    assert abs(normal.std() - 3) < 0.05
    assert abs(((normal - 2) ** 3).mean()) < 1  # no skew; 27 is the cube of the deviation
    attrs["dtype"] = "int64"
    whole = run("random_values", distribution=("random_uniform_int", -2, 2), **attrs)
    numbers, counts = np.unique(whole, return_counts=True)
    assert numbers.tolist() == [-2, -1, 0, 1, 2]
    assert abs(counts / counts.sum() - 0.2).max() < 0.01


@pytest.mark.parametrize(
    ("distribution", "dtype", "found"),
    [
        (("random_normal", 0.0, -1.0), "float32", "standard deviation -1.0"),
        (("random_normal", np.nan, 1.0), "float32", "nan"),
        (("random_normal", 0.0, 1.0), "int32", "element type int32"),
        (("random_uniform", 1.0, 1.0), "float32", "from 1.0 to 1.0"),
        (("random_uniform_int", 0, 300), "int8", "from 0 to 300"),
        (("random_uniform_int", 3, 2), "int8", "from 3 to 2"),
        (("random_uniform_int", 0, 2**54), "int64", "from 0 to"),
        (("random_uniform_int", 0, 2), "float32", "element type float32"),
        (("constant", 0, 2), "float32", "distribution 'constant'"),
    ],
)
def test_random_values_of_no_distribution_are_refused(distribution, dtype, found):
    with pytest.raises(InferenceError, match=found):
        run("random_values", distribution=distribution, shape=(2,), dtype=dtype)


def test_random_permutations_are_permutations():
    x = np.zeros((1000, 1), np.float32)
    a, b = (run("generate_random_batch_permutation_indices", x, at_step=step) for step in (5, 6))
    assert sorted(a) == sorted(b) == list(range(1000))
    assert (a != b).any()


def test_gather_from_an_empty_table_returns_zeros():
    table, index = np.zeros((0, 3), np.float32), np.array([0, 1], np.int32)
    np.testing.assert_array_equal(run("gather", table, index, axis=0), np.zeros((2, 3)))
