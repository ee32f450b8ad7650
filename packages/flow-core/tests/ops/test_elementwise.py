"""Elementwise kernels beyond the generic kit: shared memory, tiles, accuracy."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flow_core.builtin.numpy_kernels.math import binary, convert, unary
from flow_core.builtin.numpy_kernels.nn import activation
from flow_core.builtin.numpy_kernels.steps import TILE
from flow_core.ops.math import binary as binary_ops
from flow_core.ops.math import unary as unary_ops
from flow_core.ops.nn import activation as activation_ops
from flow_core.plugins.specs import BindContext, OpSpec, Sample, load
from flow_core.testing.checks import query

SPECS: dict[str, OpSpec] = {
    spec.type: spec for module in (unary_ops, activation_ops, binary_ops) for spec in module.OPS
}
KERNELS = {
    kernel.op: kernel
    for module in (unary, activation, binary, convert)
    for kernel in module.KERNELS
}
IN_PLACE = [(op, k) for op, spec in SPECS.items() for k in spec.inplace]


def bind(op: str, arrays: Any, attrs: Any, out: Any = None) -> tuple[list[Any], Any]:
    """Return the launches of a kernel and the output that they write."""
    asked = query(SPECS[op], arrays, attrs)
    kernel = KERNELS[op]
    result = asked.outputs[0]
    out = np.empty(result.shape, result.dtype.numpy) if out is None else out
    workspace = np.full(kernel.workspace(asked), 0xA5, np.uint8) if kernel.workspace else None
    bound = load(kernel.load)(BindContext(asked, tuple(arrays), (out,), workspace))
    return (list(bound) if isinstance(bound, list | tuple) else [bound]), out


def run(op: str, *arrays: Any, out: Any = None, **attrs: Any) -> Any:
    """Run a kernel and return its output."""
    launches, out = bind(op, arrays, attrs, out)
    with np.errstate(all="ignore"):
        for launch in launches:
            launch()
    return out


def samples(op: str) -> Iterator[Sample]:
    make = SPECS[op].samples
    assert make is not None
    return iter(make(np.random.default_rng(5)))


@pytest.mark.representative(
    r"float32\]", "in float16, a kernel is one ufunc, or has scratch memory and writes y last"
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("op", "k"), IN_PLACE)
def test_output_may_overwrite_an_input(op: str, k: int, dtype: Any) -> None:
    for sample in samples(op):
        arrays = [x.astype(dtype) if x.dtype.kind == "f" else x for x in sample.inputs]
        if query(SPECS[op], arrays, sample.attrs).outputs[0].shape != arrays[k].shape:
            continue
        apart = run(op, *arrays, **sample.attrs)
        if apart.dtype != arrays[k].dtype:
            continue
        shared = [x.copy() for x in arrays]
        run(op, *shared, out=shared[k], **sample.attrs)
        np.testing.assert_array_equal(shared[k], apart)
        for i, (x, y) in enumerate(zip(shared, arrays, strict=True)):
            assert i == k or np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


@pytest.mark.parametrize("op", ["gelu", "sigmoid_grad", "where", "add_n", "xdivy", "elu"])
@pytest.mark.parametrize("extra", [0, 1, TILE + 3])
def test_tiled_results_match_the_reference(op: str, extra: int) -> None:
    sample = next(samples(op))
    rng = np.random.default_rng(2)
    shape = (TILE + extra,)
    arrays = [rng.uniform(-2, 2, shape).astype(x.dtype) for x in sample.inputs]
    reference = SPECS[op].reference
    assert reference is not None
    expected = reference(*arrays, **sample.attrs)
    np.testing.assert_allclose(run(op, *arrays, **sample.attrs), expected, 1e-10, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-16), (np.float32, 4e-7)])
def test_erf_is_accurate_to_the_last_digits(dtype: Any, tolerance: float) -> None:
    x = np.concatenate([np.linspace(-6, 6, 4001), [1e-30, -1e-30, np.inf, -np.inf]]).astype(dtype)
    expected = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(run("erf", x), expected, tolerance)
    assert math.isnan(run("erf", np.array([np.nan], dtype))[0])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 2e-15), (np.float32, 2e-6)])
def test_erfc_is_accurate_in_its_tail(dtype: Any, tolerance: float) -> None:
    x = np.concatenate([np.linspace(-6, 9, 4001), [np.inf, -np.inf]]).astype(dtype)
    expected = np.array([math.erfc(v) for v in x])
    np.testing.assert_allclose(run("erfc", x), expected, tolerance, atol=1e-37)


def test_lgamma_near_zeros_poles_and_for_large_arguments() -> None:
    x = np.array([1.0, 2.0, 1 + 1e-9, 0.0, -1.0, -7.5, 1e-300, 1e15, 1e300, np.inf])
    expected = [math.lgamma(v) if v > 0 or v % 1 else np.inf for v in x]
    np.testing.assert_allclose(run("lgamma", x), expected, 1e-14, 2e-15)


@pytest.mark.parametrize(("op", "limit"), [("softplus", 90.0), ("log_sigmoid", 0.0)])
def test_logarithms_of_exponentials_do_not_overflow(op: str, limit: float) -> None:
    assert run(op, np.array([90.0], np.float32))[0] == pytest.approx(limit, abs=1e-30)


def test_relu_propagates_nan_and_blocks_gradients_at_zero() -> None:
    x = np.array([np.nan, -0.0, 0.0, -1.0, 2.0, np.inf], np.float32)
    y = run("relu", x)
    np.testing.assert_array_equal(y, np.array([np.nan, 0, 0, 0, 2, np.inf], np.float32))
    found = run("relu_grad", y[1:], np.full(5, np.inf, np.float32))
    np.testing.assert_array_equal(found, [0, 0, 0, np.inf, np.inf])


def test_where_does_not_mix_values() -> None:
    condition = np.array([2, 0, -1, 0], np.int32)
    bad = np.array([np.nan, 1, np.inf, 2])
    np.testing.assert_array_equal(
        run("where", condition, bad, np.arange(4.0)), [np.nan, 1, np.inf, 3]
    )
    np.testing.assert_array_equal(
        run("where_scalar_y", condition, bad, operand=0.0), [np.nan, 0, np.inf, 0]
    )


def test_integer_division_truncates_and_remainder_has_the_sign_of_the_divisor() -> None:
    x, y = np.array([7, -7, 7, -7], np.int8), np.array([2, 2, -2, -2], np.int8)
    np.testing.assert_array_equal(run("broadcast_div", x, y), [3, -3, -3, 3])
    np.testing.assert_array_equal(run("broadcast_floordiv", x, y), [3, -4, -4, 3])
    np.testing.assert_array_equal(run("broadcast_floor_mod", x, y), [1, 1, -1, -1])


def test_infinite_limits_fit_every_integer_type() -> None:
    x = np.array([-128, 3, 127], np.int8)
    found = run("clip_by_scalar", x, floating_min=0.0, integral_min=0,
                floating_max=math.inf, integral_max=2**63 - 1)  # fmt: skip
    np.testing.assert_array_equal(found, [0, 3, 127])


@pytest.mark.parametrize("op", ["broadcast_add", "relu_grad", "gelu", "where", "sigmoid", "add_n"])
def test_launches_allocate_nothing(op: str) -> None:
    sample = next(samples(op))
    arrays = [np.ones((40, 512)).astype(x.dtype) for x in sample.inputs]
    launches, _ = bind(op, arrays, sample.attrs)
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
    assert peak < 1024
