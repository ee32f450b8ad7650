"""Importers of matrix products, convolutions, pools, normalization and softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.base.shapes import same_padding
from flow_onnx.importers.arrays import padded
from flow_onnx.importers.context import Blob, Importer, Node, as_type, expanded, reshaped, widened
from flow_onnx.importers.elementwise import plus, times
from flow_onnx.importers.folding import emit
from flow_onnx.importers.reductions import mean

# --------------------------------------------------------------------------- matrix products


def product(a: Blob, b: Blob) -> Blob:
    """Multiply blobs as numpy's ``matmul`` does."""
    if len(b.shape) == 1:
        y = product(a, reshaped(b, (*b.shape, 1)))
        return reshaped(y, y.shape[:-1])
    if len(a.shape) == 1:
        y = product(reshaped(a, (1, *a.shape)), b)
        return reshaped(y, (*y.shape[:-2], y.shape[-1]))
    if len(b.shape) == 2:
        rows = prod(a.shape[:-1])
        y = emit("matmul", reshaped(a, (rows, a.shape[-1])), b)
        return reshaped(y, (*a.shape[:-1], b.shape[-1]))
    lead = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    return emit("batch_matmul", *(expanded(x, (*lead, *x.shape[-2:])) for x in (a, b)))


def _gemm(n: Node) -> Blob:
    y = emit(
        "matmul", n.blob(0), n.blob(1), alpha=n.attr("alpha", 1.0),
        transpose_a=bool(n.attr("transA", 0)), transpose_b=bool(n.attr("transB", 0)),
    )  # fmt: skip
    if not n.has(2):
        return y
    beta, bias = n.attr("beta", 1.0), n.blob(2)
    if n.opset < 7 and not n.attr("broadcast", 0) and tuple(bias.shape) != tuple(y.shape):
        n.invalid(f"C of shape {tuple(bias.shape)}", f"shape {tuple(y.shape)}, or broadcast=1")
    return emit("broadcast_add", y, bias if beta == 1 else times(bias, beta))


# --------------------------------------------------------------------------- windows


def _window(n: Node, x: Blob, kernel: Sequence[int]) -> tuple[dict[str, Any], list[int], list[int]]:
    """Return strides and dilations, and the padding before and after each axis of space."""
    dims = len(kernel)
    strides = list(n.attr("strides") or [1] * dims)
    dilations = list(n.attr("dilations") or [1] * dims)
    pads, auto = list(n.attr("pads") or [0] * 2 * dims), n.attr("auto_pad", "NOTSET")
    before, after = pads[:dims], pads[dims:]
    if auto == "VALID":
        before = after = [0] * dims
    if auto.startswith("SAME"):
        columns = zip(x.shape[2:], kernel, strides, dilations, strict=True)
        sides = [same_padding(*column, auto == "SAME_LOWER") for column in columns]
        before, after = ([side[i] for side in sides] for i in (0, 1))
    return {"strides": tuple(strides), "dilation_rate": tuple(dilations)}, before, after


def _kernel(n: Node, weight: Blob) -> tuple[int, ...]:
    kernel = tuple(weight.shape[2:])
    given = tuple(n.attr("kernel_shape", kernel))
    if given != kernel:
        n.invalid(f"kernel_shape={given} for weights of shape {tuple(weight.shape)}", str(kernel))
    return kernel


def _with_bias(n: Node, y: Blob) -> Blob:
    return emit("bias_add", y, n.blob(2), axis=1) if n.has(2) else y


def _conv(n: Node) -> Blob:
    x, weight = n.blob(0), n.blob(1)
    kernel = _kernel(n, weight)
    attrs, before, after = _window(n, x, kernel)
    y = emit(
        f"conv{len(kernel)}d", x, weight, filters=weight.shape[0], kernel_size=kernel,
        padding_before=tuple(before), padding_after=tuple(after), groups=n.attr("group", 1),
        data_format="channels_first", **attrs,
    )  # fmt: skip
    return _with_bias(n, y)


def _conv_transpose(n: Node) -> Blob:
    x, weight = n.blob(0), n.blob(1)
    kernel, groups = _kernel(n, weight), n.attr("group", 1)
    if n.attr("auto_pad", "NOTSET") != "NOTSET" or n.attr("output_shape"):
        n.unsupported("padding that follows from the size of the result")
    attrs, before, after = _window(n, x, kernel)
    extra = tuple(n.attr("output_padding") or [0] * len(kernel))
    y = emit(
        f"deconv{len(kernel)}d", x, weight, filters=weight.shape[1] * groups, kernel_size=kernel,
        padding_before=tuple(before), padding_after=tuple(after), output_padding=extra,
        groups=groups, data_format="channels_first", **attrs,
    )  # fmt: skip
    return _with_bias(n, y)


def _pool(kind: str) -> Importer:
    def run(n: Node) -> Blob:
        x, size = n.blob(), tuple(n.attr("kernel_shape"))
        if len(x.shape) != len(size) + 2:
            n.invalid(f"kernel_shape={size} for shape {tuple(x.shape)}", "a size per axis of space")
        attrs, before, after = _window(n, x, size)
        if set(attrs.pop("dilation_rate")) != {1}:
            n.unsupported("dilations")
        ceil = bool(n.attr("ceil_mode", 0))
        if kind == "avg" and n.attr("count_include_pad", 0) and any((*before, *after)):
            if ceil:
                n.unsupported("ceil_mode=1 with count_include_pad=1")
            x = padded(x, (0, 0, *before), (0, 0, *after))
            before, after = ([0] * len(size) for _ in range(2))
        columns = zip(x.shape[2:], size, attrs["strides"], before, after, strict=True)
        after = [_last_padding(*column, ceil) for column in columns]
        return emit(
            f"{kind}_pool_{len(size)}d", x, padding="customized", padding_before=tuple(before),
            padding_after=tuple(after), pool_size=size, ceil_mode=False,
            data_format="channels_first", **attrs,
        )  # fmt: skip

    return run


def _last_padding(size: int, kernel: int, stride: int, before: int, after: int, ceil: bool) -> int:
    """Return the padding after an axis with which the last window is whole.

    With ``ceil``, the last window may extend beyond the padding, but a window that begins there is
    omitted, as in ONNX Runtime and torch.

    >>> _last_padding(5, 2, 3, 1, 1, True), _last_padding(6, 3, 2, 0, 0, True)
    (0, 1)
    """
    count = (size + before + after - kernel + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= size + before:
        count -= 1
    return max(0, (count - 1) * stride + kernel - size - before)


def _resize(n: Node) -> Blob:
    x, early = n.blob(), n.opset < 11
    sizes, scales = n.ints(3, "sizes"), n.known(1 if early else 2, "scales")
    if sizes:
        factors = [size / old for size, old in zip(sizes, x.shape, strict=True)]
    else:
        factors = [] if scales is None else scales.tolist()
    mode, place = n.attr("mode", "nearest"), "asymmetric" if early else "half_pixel"
    place = n.attr("coordinate_transformation_mode", place)
    rounding = n.attr("nearest_mode", "floor" if early else "round_prefer_floor")
    known = {("nearest", "asymmetric"): "nearest", ("linear", "half_pixel"): "bilinear"}
    found = known.get((mode, place))
    whole = len(factors) == 4 and factors[:2] == [1, 1] and all(f == int(f) for f in factors)
    if found is None or not whole or (found == "nearest" and rounding != "floor"):
        n.unsupported(
            f"mode {mode!r} with {place!r}, {rounding!r} and factors {factors}; images are "
            "enlarged by whole factors, by 'nearest' with 'asymmetric' and 'floor', or 'linear' "
            "with 'half_pixel'"
        )
    return emit(
        "upsample", x, height_scale=float(factors[2]), width_scale=float(factors[3]),
        data_format="channels_first", interpolation=found,
    )  # fmt: skip


# --------------------------------------------------------------------------- normalization


def _softmax(op: str) -> Importer:
    def run(n: Node) -> Blob:
        x = n.blob()
        axis = n.axis(len(x.shape), -1 if n.opset >= 13 else 1)
        if n.opset >= 13:
            return emit(op, x, axis=axis)
        rows = reshaped(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
        return reshaped(emit(op, rows, axis=1), x.shape)

    return run


def _batch_norm(n: Node) -> Blob:
    if n.attr("training_mode", 0) or (n.opset < 7 and not n.attr("is_test", 0)):
        n.unsupported("training mode")
    x, gamma, beta = n.blob(0), n.blob(1), n.blob(2)
    moving = (n.blob(i, trainable=False) for i in (3, 4))
    attrs = {"epsilon": n.attr("epsilon", 1e-5), "momentum": n.attr("momentum", 0.9)}
    return emit("normalization", x, *moving, gamma, beta, axis=1, training=False, **attrs)[0]


def _layer_norm(n: Node) -> Blob:
    x, gamma = n.blob(0), n.blob(1)
    axis = n.axis(len(x.shape), -1)
    axes, epsilon = list(range(axis, len(x.shape))), n.attr("epsilon", 1e-5)
    if n.has(2) and tuple(gamma.shape) == tuple(n.blob(2).shape) == tuple(x.shape[axis:]):
        return emit(
            "layer_norm", x, n.blob(2), gamma, begin_norm_axis=axis, begin_params_axis=axis,
            epsilon=epsilon,
        )[0]  # fmt: skip
    y = emit("broadcast_mul", _centered(x, axes, epsilon), gamma)
    return emit("broadcast_add", y, n.blob(2)) if n.has(2) else y


def _centered(x: Blob, axes: Sequence[int], epsilon: float) -> Blob:
    """Shift and scale a blob to mean 0 and variance 1 over axes."""
    wide = widened(x)
    apart = emit("broadcast_sub", wide, mean(wide, axes))
    variance = plus(mean(emit("square", apart), axes), epsilon)
    return as_type(emit("broadcast_mul", apart, emit("rsqrt", variance)), x.dtype.name)


def _per_channel(y: Blob, n: Node) -> Blob:
    """Multiply by the second input and add the third one, which have one number per channel."""
    parts = [n.blob(i) for i in (1, 2)]
    if any(tuple(part.shape) != (y.shape[1],) for part in parts):
        found = " and ".join(str(tuple(part.shape)) for part in parts)
        n.unsupported(f"scale and bias of shapes {found} for {y.shape[1]} channels")
    ones = [1] * (len(y.shape) - 2)
    scale, shift = (reshaped(part, (*part.shape, *ones)) for part in parts)
    return emit("broadcast_add", emit("broadcast_mul", y, scale), shift)


def _instance_norm(n: Node) -> Blob:
    x = n.blob()
    return _per_channel(_centered(x, range(2, len(x.shape)), n.attr("epsilon", 1e-5)), n)


def _group_norm(n: Node) -> Blob:
    x, groups = n.blob(), n.attr("num_groups")
    if not groups or x.shape[1] % groups:
        n.invalid(f"num_groups={groups} for {x.shape[1]} channels", "a divisor")
    parts = reshaped(x, (x.shape[0], groups, prod(x.shape[1:]) // groups))
    return _per_channel(reshaped(_centered(parts, [2], n.attr("epsilon", 1e-5)), x.shape), n)


IMPORTERS: Mapping[str, Importer] = {
    "AveragePool": _pool("avg"),
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax("log_softmax"),
    "MatMul": lambda n: product(n.blob(0), n.blob(1)),
    "MaxPool": _pool("max"),
    "Resize": _resize,
    "Softmax": _softmax("softmax"),
}
