"""Convolutions and pools of any size, stride, dilation and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx_cases.models import op_results

from flow_core.base.errors import InferenceError
from flow_core.plugins.host import default_registry

OPS = default_registry().ops
LAYOUTS = ("channels_first", "channels_last")
quick = settings(max_examples=25)


def filled(rng: Any, shape: tuple[int, ...]) -> Any:
    return rng.integers(-4, 5, shape).astype(np.float32)


def placed(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Permute a channels-first shape to a layout."""
    return shape if layout == "channels_first" else (shape[0], *shape[2:], shape[1])


def agree(type_: str, arrays: list[Any], attrs: dict[str, Any]) -> None:
    try:
        (found, *_) = op_results(type_, arrays, attrs, 18)
    except InferenceError:
        assume(False)
        return
    expected = OPS[type_].reference(*arrays, **{**OPS[type_].attrs, **attrs})
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@st.composite
def windows(draw: Any) -> dict[str, Any]:
    dims = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims)))

    return {
        "dims": dims, "size": each(2, 7), "kernel_size": each(1, 3), "strides": each(1, 3),
        "dilation_rate": each(1, 2), "padding_before": each(0, 2), "padding_after": each(0, 2),
        "groups": draw(st.sampled_from((1, 2))), "data_format": draw(st.sampled_from(LAYOUTS)),
        "seed": draw(st.integers(0, 99)),
    }  # fmt: skip


def split(case: dict[str, Any]) -> tuple[int, Any, tuple[int, ...], dict[str, Any]]:
    attrs = dict(case)
    dims, size = attrs.pop("dims"), attrs.pop("size")
    return dims, np.random.default_rng(attrs.pop("seed")), size, attrs


@quick
@given(windows())
def test_convolutions(case: dict[str, Any]) -> None:
    dims, rng, size, attrs = split(case)
    x = filled(rng, placed((2, 4, *size), attrs["data_format"]))
    weight = (6, 4 // attrs["groups"], *attrs["kernel_size"])
    arrays = [x, filled(rng, placed(weight, attrs["data_format"]))]
    agree(f"conv{dims}d", arrays, attrs | {"filters": 6})


@quick
@given(windows(), st.data())
def test_transposed_convolutions(case: dict[str, Any], data: Any) -> None:
    dims, rng, size, attrs = split(case)
    extra = tuple(data.draw(st.integers(0, s - 1)) for s in attrs["strides"])
    x = filled(rng, placed((2, 4, *size), attrs["data_format"]))
    weight = (4, 3, *attrs["kernel_size"])
    arrays = [x, filled(rng, placed(weight, attrs["data_format"]))]
    agree(f"deconv{dims}d", arrays, attrs | {"filters": 3, "output_padding": extra})


@quick
@given(
    windows(),
    st.sampled_from(("max", "avg")),
    st.sampled_from(("valid", "same", "same_lower", "customized")),
    st.booleans(),
)
def test_pools(case: dict[str, Any], mode: str, padding: str, ceil_mode: bool) -> None:
    dims, rng, size, attrs = split(case)
    kernel = attrs["kernel_size"]
    pads = {
        key: tuple(min(p, k - 1) for p, k in zip(attrs[key], kernel, strict=True))
        for key in ("padding_before", "padding_after")
    }
    x = filled(rng, placed((2, 3, *size), attrs["data_format"]))
    shared = {key: attrs[key] for key in ("strides", "data_format")}
    asked = {"padding": padding, "pool_size": kernel, "ceil_mode": ceil_mode}
    agree(f"{mode}_pool_{dims}d", [x], shared | pads | asked)


@quick
@given(
    st.integers(1, 4).flatmap(
        lambda rank: st.tuples(
            st.lists(st.integers(1, 4), min_size=rank, max_size=rank),
            st.sets(st.integers(-rank, rank - 1)),
        )
    ),
    st.booleans(),
    st.sampled_from(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")),
)
def test_reductions(case: Any, keepdims: bool, type_: str) -> None:
    shape, axes = case
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    agree(type_, [x], {"axis": tuple(axes), "keepdims": keepdims})
