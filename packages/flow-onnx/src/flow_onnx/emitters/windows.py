"""Emitters of convolutions, transposed convolutions, pooling and upsampling.

ONNX supports the channels-first layout only, so channels-last tensors are transposed before and
after these ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flow_core.base.shapes import same_padding
from flow_onnx.emission import Emission
from flow_onnx.emitters.common import Emit


def _is_last(e: Emission) -> bool:
    return bool(e.attr("data_format") == "channels_last")


def _first(e: Emission, x: str) -> str:
    """Transpose a channels-last tensor, or channels-last filters, to channels-first."""
    return e.transpose(x, (0, e.rank - 1, *range(1, e.rank - 1))) if _is_last(e) else x


def _back(e: Emission, y: str) -> str:
    return e.transpose(y, (0, *range(2, e.rank), 1)) if _is_last(e) else y


def _space(e: Emission) -> tuple[int, ...]:
    return e.shape[1:-1] if _is_last(e) else e.shape[2:]


def _windows(e: Emission) -> dict[str, Any]:
    """Return the common attributes of convolutions and transposed convolutions."""
    before, after = e.attr("padding_before"), e.attr("padding_after")
    return {
        "kernel_shape": list(e.attr("kernel_size")),
        "strides": list(e.attr("strides")),
        "dilations": list(e.attr("dilation_rate")),
        "group": e.attr("groups"),
        "pads": [*before, *(before if after is None else after)],
    }


def _conv(e: Emission) -> str:
    x, weight = (_first(e, name) for name in e.inputs)
    return _back(e, e.node("Conv", x, weight, **_windows(e)))


def _deconv(e: Emission) -> str:
    x, weight = (_first(e, name) for name in e.inputs)
    more = {"output_padding": list(e.attr("output_padding"))}
    return _back(e, e.node("ConvTranspose", x, weight, **_windows(e), **more))


# ------------------------------------------------------------------------------ pools


def _pool_pads(e: Emission) -> list[int]:
    """Return the padding for which ONNX's node has as many windows as the op, with any rounding."""
    y, kernel = e.outputs[0].shape, e.attr("pool_size")
    if _rounds(e) and e.open and e.open[0] - {0, e.rank - 1 if _is_last(e) else 1}:
        e.unsupported("its padding depends on sizes that are open")
    out = y[1:-1] if _is_last(e) else y[2:]
    before = [_before(e, axis, size) for axis, size in enumerate(_space(e))]
    columns = zip(_space(e), out, before, kernel, e.attr("strides"), strict=True)
    after = [max(0, (windows - 1) * s + k - b - n) for n, windows, b, k, s in columns]
    given = e.attr("padding_after") if e.attr("padding") == "customized" else ()
    if not _rounds(e) and given and all(p < k for p, k in zip(given, kernel, strict=True)):
        after = list(given)
    return [*before, *after]


def _rounds(e: Emission) -> bool:
    """Return whether the padding depends on the input size."""
    padding = e.attr("padding")
    return padding != "valid" and (padding != "customized" or bool(e.attr("ceil_mode")))


def _before(e: Emission, axis: int, size: int) -> int:
    padding = e.attr("padding")
    if padding == "valid":
        return 0
    if padding == "customized":
        return int(e.attr("padding_before")[axis])
    kernel, stride = e.attr("pool_size")[axis], e.attr("strides")[axis]
    return same_padding(size, kernel, stride, 1, padding == "same_lower")[0]


def _pool(op_type: str) -> Emit:
    """Return the emitter of a pooling; averages exclude padding, as ONNX's do by default."""

    def emit(e: Emission) -> str:
        attrs = {"kernel_shape": list(e.attr("pool_size")), "strides": list(e.attr("strides"))}
        x = _first(e, e.x)
        pool = e.node(op_type, _poolable(e, x), pads=_pool_pads(e), **attrs)
        return _back(e, pool if e.dtype.is_floating else e.cast(pool, e.dtype))

    return emit


def _poolable(e: Emission, x: str) -> str:
    """Cast integers to float64, which represents 32-bit integers exactly."""
    if e.dtype.is_floating:
        return x
    if e.dtype.name == "int64":
        e.unsupported("pools of int64: ONNX has none, and other types have fewer digits")
    return e.cast(x, "float64")


# ------------------------------------------------------------------------------ enlargements


RESIZE: Mapping[str, dict[str, str]] = {
    "nearest": {
        "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
    },
    "bilinear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
}  # fmt: skip


def _upsample(e: Emission) -> str:
    scales = [float(e.attr(name)) for name in ("height_scale", "width_scale")]
    if any(scale != int(scale) for scale in scales):
        e.unsupported(
            f"scales {scales}: ONNX keeps what is left over of a size, and this op does not"
        )
    sizes = e.const([1, 1, *scales], "float32")
    region = "" if e.opset >= 13 else e.const([], "float32")  # unused, but required before 13
    return e.node("Resize", e.x, region, sizes, **RESIZE[e.attr("interpolation")])


def _per_dimension(name: str, emit: Callable[[Emission], str]) -> dict[str, Emit]:
    return {name.format(dims): emit for dims in (1, 2, 3)}


EMITTERS: Mapping[str, Emit] = {
    **_per_dimension("conv{}d", _conv),
    **_per_dimension("deconv{}d", _deconv),
    **_per_dimension("max_pool_{}d", _pool("MaxPool")),
    **_per_dimension("avg_pool_{}d", _pool("AveragePool")),
    "upsample": _upsample,
}
