"""Convolutions and pooling beyond the samples: random cases, adjoints, every lowering, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.base.errors import InferenceError
from flow_core.builtin.numpy_kernels.nn import conv as kernels
from flow_core.builtin.numpy_kernels.nn import pool as pool_kernels
from flow_core.builtin.numpy_kernels.nn import windows
from flow_core.ops.nn import conv, pool
from flow_core.plugins.specs import BindContext, KernelSpec, OpSpec, Sample, load
from flow_core.testing.checks import check_kernel, query, run_kernel

SPECS: dict[str, OpSpec] = {spec.type: spec for spec in (*conv.OPS, *pool.OPS)}
KERNELS: dict[str, KernelSpec] = {
    kernel.op: kernel for kernel in (*kernels.KERNELS, *pool_kernels.KERNELS)
}


def run(op: str, *arrays: Any, **attrs: Any) -> Any:
    asked = query(SPECS[op], arrays, attrs)
    return run_kernel(KERNELS[op], asked, arrays)[0]


def grad_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    skip = ("filters", "padding_after")
    dims = len(attrs["kernel_size"])
    return {"num_spatial_dims": dims} | {k: v for k, v in attrs.items() if k not in skip}


@st.composite
def cases(draw: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Draw x, weights and attributes of a small convolution."""
    dims, groups, n = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    channels, filters = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims)))

    kernel, before, after, more = numbers(1, 3), numbers(0, 3), numbers(0, 3), numbers(0, 4)
    strides = (1,) * dims if draw(st.booleans()) else numbers(1, 3)
    dilation = (1,) * dims if draw(st.booleans()) else numbers(1, 2)
    columns = zip(kernel, dilation, before, after, more, strict=True)
    size = [max(1, (k - 1) * d + 1 - a - b) + extra for k, d, a, b, extra in columns]
    first = draw(st.booleans())
    x_shape = (n, groups * channels, *size) if first else (n, *size, groups * channels)
    filters *= groups
    shape = (filters, channels, *kernel) if first else (filters, *kernel, channels)
    attrs = {
        "filters": filters, "kernel_size": kernel, "strides": strides, "dilation_rate": dilation,
        "padding_before": before, "padding_after": after, "groups": groups,
        "data_format": "channels_first" if first else "channels_last",
    }  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.normal(size=x_shape), rng.normal(size=shape), attrs


def naive(x: Any, weight: Any, attrs: dict[str, Any]) -> Any:
    """Compute the definition of a convolution element by element."""
    last = attrs["data_format"] == "channels_last"
    if last:
        x, weight = np.moveaxis(x, -1, 1), np.moveaxis(weight, -1, 1)
    kernel, step, dilation = (attrs[k] for k in ("kernel_size", "strides", "dilation_rate"))
    pads = list(zip(attrs["padding_before"], attrs["padding_after"], strict=True))
    columns = zip(x.shape[2:], kernel, step, dilation, pads, strict=True)
    out = [(n + sum(p) - d * (k - 1) - 1) // s + 1 for n, k, s, d, p in columns]
    y = np.zeros((x.shape[0], weight.shape[0], *out))
    depth, per_group = weight.shape[1], weight.shape[0] // attrs["groups"]
    for n, f, *place in product(*map(range, y.shape)):
        for c, *tap in product(range(depth), *map(range, kernel)):
            columns = zip(place, step, tap, dilation, pads, strict=True)
            at = tuple(p * s + t * d - pad[0] for p, s, t, d, pad in columns)
            if all(0 <= i < size for i, size in zip(at, x.shape[2:], strict=True)):
                channel = f // per_group * depth + c
                y[(n, f, *place)] += x[(n, channel, *at)] * weight[(f, c, *tap)]
    return np.moveaxis(y, 1, -1) if last else y


@settings(max_examples=25)
@given(cases())
def test_reference_matches_the_definition(case: Any) -> None:
    x, weight, attrs = case
    x = x[:1]
    op = SPECS[f"conv{len(attrs['kernel_size'])}d"]
    assert op.reference is not None
    np.testing.assert_allclose(op.reference(x, weight, **attrs), naive(x, weight, attrs), atol=1e-9)


@pytest.mark.slow
@settings(max_examples=150)
@given(cases(), st.sampled_from((1, 200, 2000, 1 << 22)), st.sampled_from((1, 48)))
def test_gradients_are_adjoints(case: Any, budget: int, narrow: int) -> None:
    """<conv(x, w), y> = <x, data_grad(y, w)> = <w, filter_grad(y, x)>, for any tiling."""
    x, weight, attrs = case
    op = f"conv{len(attrs['kernel_size'])}d"
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels, windows):
            patch.setattr(module, "BUDGET", budget)
        patch.setattr(kernels, "NARROW", narrow)
        y = run(op, x, weight, **attrs)
        reference = SPECS[op].reference
        assert reference is not None
        np.testing.assert_allclose(y, reference(x, weight, **attrs), atol=1e-9)
        dy = np.cos(np.arange(y.size)).reshape(y.shape)
        dx = run("conv_data_grad", dy, weight, x, **grad_attrs(attrs))
        dw = run("conv_filter_grad", dy, x, **grad_attrs(attrs))
    np.testing.assert_allclose((x * dx).sum(), (y * dy).sum(), atol=1e-8)
    np.testing.assert_allclose((weight * dw).sum(), (y * dy).sum(), atol=1e-8)


def test_every_lowering_is_exercised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Common sizes use "rows"; few images or channels-last layouts use "image"."""

    def chosen(n: int, form: str, stride: int) -> list[str]:
        x = (n, 32, 14, 14) if form == "channels_first" else (n, 14, 14, 32)
        weight = (64, 32, 5, 5) if form == "channels_first" else (64, 5, 5, 32)
        attrs = {
            "filters": 64, "kernel_size": (5, 5), "strides": (stride,) * 2, "data_format": form,
            "padding_before": (2, 2), "dilation_rate": (1, 1),
        }  # fmt: skip
        arrays = np.zeros(x, np.float32), np.zeros(weight, np.float32)
        forward = query(SPECS["conv2d"], arrays, attrs)
        dy = np.zeros(forward.outputs[0].shape, np.float32)
        more = grad_attrs(attrs | {"groups": 1})
        back = query(SPECS["conv_data_grad"], (dy, arrays[1], arrays[0]), more)
        weights = query(SPECS["conv_filter_grad"], (dy, arrays[0]), more)
        lowerings = (
            kernels._lower_conv(forward),
            kernels._lower_data_grad(back),
            kernels._lower_filter_grad(weights),
        )
        return [type(lowering).__name__ for _, lowering in lowerings]

    assert chosen(100, "channels_first", 1) == ["RowForward", "RowForward", "RowFilterGrad"]
    assert chosen(100, "channels_first", 2) == ["RowForward", "StridedDataGrad", "ImageFilterGrad"]
    assert chosen(1, "channels_first", 1) == ["ImageForward", "ImageForward", "ImageFilterGrad"]
    assert chosen(100, "channels_last", 1) == ["ImageForward", "ImageForward", "ImageFilterGrad"]


def bound(op: str, arrays: tuple[Any, ...], attrs: dict[str, Any]) -> Callable[[], None]:
    """Bind a kernel once and return a function that runs all its launches."""
    asked, kernel = query(SPECS[op], arrays, attrs), KERNELS[op]
    outputs = tuple(np.empty(t.shape, t.dtype.numpy) for t in asked.outputs)
    assert kernel.workspace is not None
    workspace = np.empty(kernel.workspace(asked), np.uint8)
    launches = load(kernel.load)(BindContext(asked, arrays, outputs, workspace))

    def run() -> None:
        for launch in launches:
            launch()

    return run


LENET = {
    "filters": 64, "kernel_size": (5, 5), "strides": (1, 1), "data_format": "channels_first",
    "padding_before": (2, 2), "dilation_rate": (1, 1), "groups": 1,
}  # fmt: skip
HALVES = {"padding": "same_lower", "pool_size": (2, 2), "strides": (2, 2)}


def steady_cases() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    x, weight = np.zeros((100, 32, 14, 14), np.float32), np.zeros((64, 32, 5, 5), np.float32)
    dy, small = np.zeros((100, 64, 14, 14), np.float32), np.zeros((100, 64, 7, 7), np.float32)
    strided = {**grad_attrs(LENET), "strides": (2, 2)}
    first, last = np.zeros((100, 1, 28, 28), np.float32), np.zeros((100, 14, 14, 32), np.float32)
    first_dy, last_dy = np.zeros((100, 32, 28, 28), np.float32), np.zeros((100, 14, 14, 64), "f4")
    form, nhwc = {"data_format": "channels_first"}, {"data_format": "channels_last"}
    return [
        ("conv_filter_grad", (first_dy, first), grad_attrs(LENET)),
        ("conv_filter_grad", (last_dy, last), grad_attrs(LENET) | nhwc),
        ("conv2d", (x, weight), LENET),
        ("conv_data_grad", (dy, weight, x), grad_attrs(LENET)),
        ("conv_data_grad", (small, weight, x), strided),
        ("conv_filter_grad", (dy, x), grad_attrs(LENET)),
        ("max_pool_2d", (dy,), HALVES | form),
        ("max_pool_2d_grad", (dy, small, small), HALVES | form),
        ("avg_pool_2d", (dy,), HALVES | form),
        ("avg_pool_2d_grad", (dy, small, small), HALVES | form),
    ]


@pytest.mark.representative(
    r"\[(conv_data_grad-arrays4|conv_filter_grad-arrays1|max_pool_2d_grad|avg_pool_2d-)",
    "strides, both data formats, and each kind of pooling, forward or backward",
)
@pytest.mark.parametrize(("op", "arrays", "attrs"), steady_cases())
def test_steady_state_allocates_nothing(
    op: str, arrays: tuple[Any, ...], attrs: dict[str, Any]
) -> None:
    step = bound(op, arrays, attrs)
    tracemalloc.start()
    try:
        for _ in range(3):
            step()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        step()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1024
    assert peak - before < 16384, "a temporary as large as a tensor"


def test_workspace_is_bounded() -> None:
    for op, arrays, attrs in steady_cases():
        kernel = KERNELS[op]
        assert kernel.workspace is not None
        assert kernel.workspace(query(SPECS[op], arrays, attrs)) <= 8 << 20


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"data_format": "NCHW"}, "channels_first or channels_last"),
        ({"strides": (0, 1)}, "at least 1"),
        ({"padding_before": (0,)}, "2 integers"),
        ({"groups": 3}, "groups=3"),
        ({"kernel_size": (3, 5)}, "kernel"),
        ({"dilation_rate": (9, 1), "padding_before": (0, 0)}, "at least as large"),
    ],
)
def test_wrong_attributes_raise_inference_errors(attrs: dict[str, Any], words: str) -> None:
    x, weight = np.zeros((1, 32, 14, 14)), np.zeros((64, 32, 5, 5))
    with pytest.raises(InferenceError, match=words):
        query(SPECS["conv2d"], (x, weight), LENET | attrs)


def test_windows_inside_the_padding_are_rejected_with_a_valid_hint() -> None:
    """All small windows: rejected if one has no element, and the hint removes one."""
    hinted = set()
    for n, k, s, b, a, ceil in product(range(1, 6), *[range(1, 4)] * 2, *[range(4)] * 2, (0, 1)):
        attrs = {
            "padding": "customized", "padding_before": (b,), "padding_after": (a,), "strides": (s,),
            "pool_size": (k,), "data_format": "channels_first", "ceil_mode": bool(ceil),
        }  # fmt: skip
        out = pool.pool_window(attrs, 0, n)[1]
        starts = [i * s - b for i in range(out)]
        empty = [i for i in starts if i + k <= 0 or i >= n]
        if starts and not empty:
            assert query(SPECS["max_pool_1d"], (np.zeros((1, 1, n)),), attrs).outputs[0].size == out
            continue
        with pytest.raises(InferenceError) as caught:
            query(SPECS["max_pool_1d"], (np.zeros((1, 1, n)),), attrs)
        if not starts:
            continue
        hint = caught.value.hint or ""
        hinted.add(hint.partition(" (")[0])
        if "omits that window" not in hint:
            assert hint == (
                "reduce the padding before" if starts[0] + k <= 0 else "reduce the padding after"
            )
        elif hint.startswith("ceil_mode=False"):
            assert pool.pool_window({**attrs, "ceil_mode": False}, 0, n)[1] == out - 1
        else:
            after = int(hint.partition(", ")[2].partition(")")[0])
            assert pool.pool_window({**attrs, "padding_after": (after,)}, 0, n) == (b, out - 1)
    assert len(hinted) == 4


def test_gradient_of_a_tie_goes_to_the_first_maximum() -> None:
    """First maximum in row-major order; inf and nan in dy do not affect its neighbors."""
    attrs = HALVES | {"data_format": "channels_first"}
    x = np.array([[[[1.0, 2, 0, 0], [2, 2, 0, 0]]]])
    y = np.array([[[[2.0, 0]]]])
    dx = run("max_pool_2d_grad", x, y, np.array([[[[np.inf, np.nan]]]]), **attrs)
    np.testing.assert_array_equal(dx, [[[[0, np.inf, np.nan, 0], [0, 0, 0, 0]]]])


@pytest.mark.parametrize("budget", [1, 200, 1 << 20])
def test_pooling_with_any_tiling(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_kernels, "BUDGET", budget)
    for op in ("max_pool_2d", "max_pool_2d_grad", "avg_pool_2d", "avg_pool_2d_grad"):
        samples = SPECS[op].samples
        assert samples is not None
        for sample in samples(np.random.default_rng(1)):
            check_kernel(SPECS[op], KERNELS[op], sample, float32)


def test_empty_parts_produce_zeros() -> None:
    """Split tensors may have empty parts on some devices."""
    attrs = {k: v for k, v in LENET.items() if k != "groups"}
    x, weight = np.zeros((2, 0, 6, 6)), np.zeros((4, 0, 5, 5))
    check_kernel(SPECS["conv2d"], KERNELS["conv2d"], Sample((x, weight), attrs), float32)
    x, weight = np.zeros((0, 3, 6, 6)), np.zeros((4, 3, 5, 5))
    check_kernel(SPECS["conv2d"], KERNELS["conv2d"], Sample((x, weight), attrs), float32)
    dy, x = np.zeros((0, 4, 6, 6)), np.zeros((0, 3, 6, 6))
    op = "conv_filter_grad"
    check_kernel(SPECS[op], KERNELS[op], Sample((dy, x), grad_attrs(LENET)), float32)
