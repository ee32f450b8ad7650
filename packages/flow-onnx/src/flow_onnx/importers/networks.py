"""Importers of matrix products, convolutions, pools, normalisation, softmax and reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring.specs import emit
from flow_core.base.shapes import same_padding
from flow_onnx.importers.context import Blob, Importer, Node, expanded, reshaped
from flow_onnx.importers.elementwise import plus, times

# --------------------------------------------------------------------------- matrix products


def product(a: Blob, b: Blob) -> Blob:
    """Multiply blobs as numpy's ``matmul`` does."""
    if len(a.shape) == 1:
        y = product(reshaped(a, (1, *a.shape)), b)
        return reshaped(y, (*y.shape[:-2], y.shape[-1]))
    if len(b.shape) == 1:
        y = product(a, reshaped(b, (*b.shape, 1)))
        return reshaped(y, y.shape[:-1])
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
    return emit("broadcast_add", y, bias if beta == 1 else times(bias, beta))


# --------------------------------------------------------------------------- windows


def _window(n: Node, x: Blob, kernel: Sequence[int]) -> tuple[dict[str, Any], list[int], list[int]]:
    """Return strides and dilations, and the padding before and after each axis of space."""
    dims = len(kernel)
    strides = list(n.attr("strides") or [1] * dims)
    dilations = list(n.attr("dilations") or [1] * dims)
    pads, auto = list(n.attr("pads") or [0] * 2 * dims), n.attr("auto_pad", "NOTSET")
    before, after = pads[:dims], pads[dims:]
    if auto.startswith("SAME"):
        columns = zip(x.shape[2:], kernel, strides, dilations, strict=True)
        sides = [same_padding(*column, auto == "SAME_LOWER") for column in columns]
        before, after = ([side[i] for side in sides] for i in (0, 1))
    return {"strides": tuple(strides), "dilation_rate": tuple(dilations)}, before, after


def _with_bias(n: Node, y: Blob) -> Blob:
    return emit("bias_add", y, n.blob(2), axis=1) if n.has(2) else y


def _conv(n: Node) -> Blob:
    x, weight = n.blob(0), n.blob(1)
    kernel = tuple(weight.shape[2:])
    attrs, before, after = _window(n, x, kernel)
    y = emit(
        f"conv{len(kernel)}d", x, weight, filters=weight.shape[0], kernel_size=kernel,
        padding_before=tuple(before), padding_after=tuple(after), groups=n.attr("group", 1),
        data_format="channels_first", **attrs,
    )  # fmt: skip
    return _with_bias(n, y)


def _conv_transpose(n: Node) -> Blob:
    x, weight = n.blob(0), n.blob(1)
    kernel, groups = tuple(weight.shape[2:]), n.attr("group", 1)
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
        if len(n.proto.output) > 1:
            n.unsupported("the places of the largest elements")
        x, size = n.blob(), tuple(n.attr("kernel_shape"))
        attrs, before, after = _window(n, x, size)
        if set(attrs.pop("dilation_rate")) != {1}:
            n.unsupported("dilations")
        ceil = bool(n.attr("ceil_mode", 0))
        if kind == "avg" and n.attr("count_include_pad", 0) and any((*before, *after)):
            if ceil:
                n.unsupported("ceil_mode=1 with count_include_pad=1")
            x = emit(
                "pad", x, padding_before=(0, 0, *before), padding_after=(0, 0, *after),
                floating_constant_value=0.0, integral_constant_value=0,
            )  # fmt: skip
            before, after = ([0] * len(size) for _ in range(2))
        return emit(
            f"{kind}_pool_{len(size)}d", x, padding="customized", padding_before=tuple(before),
            padding_after=tuple(after), pool_size=size, ceil_mode=ceil,
            data_format="channels_first", **attrs,
        )  # fmt: skip

    return run


def _resize(n: Node) -> Blob:
    x = n.blob()
    sizes, scales = n.ints(3, "sizes"), n.known(2, "scales") if n.has(2) else None
    if sizes:
        factors = [size / old for size, old in zip(sizes, x.shape, strict=True)]
    else:
        factors = [] if scales is None else scales.tolist()
    place = n.attr("coordinate_transformation_mode", "half_pixel")
    known = {("nearest", "asymmetric"): "nearest", ("linear", "half_pixel"): "bilinear"}
    mode = known.get((n.attr("mode", "nearest"), place))
    whole = len(factors) == 4 and factors[:2] == [1, 1] and all(f == int(f) for f in factors)
    if mode is None or not whole or (mode == "nearest" and n.attr("nearest_mode") != "floor"):
        n.unsupported(
            f"mode {n.attr('mode')!r} with {place!r} and factors {factors}; images are enlarged "
            "by whole factors, by 'nearest' with 'asymmetric' and 'floor', or 'linear' with "
            "'half_pixel'"
        )
    return emit(
        "upsample", x, height_scale=float(factors[2]), width_scale=float(factors[3]),
        data_format="channels_first", interpolation=mode,
    )  # fmt: skip


# --------------------------------------------------------------------------- reductions


def reduced(op: str, x: Blob, axes: Sequence[int], keepdims: bool = True) -> Blob:
    """Reduce axes of a blob; no axes leave it unchanged."""
    if not axes:
        return emit("identity", x)
    y = emit(op, x, axis=tuple(axes), keepdims=True)
    kept = [s for i, s in enumerate(x.shape) if i not in axes]
    return y if keepdims else reshaped(y, kept)


def _axes(n: Node, x: Blob) -> list[int]:
    axes, rank = n.ints_of("axes", 1), len(x.shape)
    if not axes:
        return [] if n.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def mean(x: Blob, axes: Sequence[int], keepdims: bool = True) -> Blob:
    """Return the mean over axes."""
    total = reduced("reduce_sum", x, axes, keepdims)
    return times(total, 1 / max(1, prod(x.shape[i] for i in axes)))


def _reduction(compute: Callable[[Blob, Sequence[int], bool], Blob]) -> Importer:
    def run(n: Node) -> Blob:
        x = n.blob()
        return compute(x, _axes(n, x), bool(n.attr("keepdims", 1)))

    return run


def _plain(op: str) -> Importer:
    return _reduction(lambda x, axes, keepdims: reduced(op, x, axes, keepdims))


def _of_squares(x: Blob, axes: Sequence[int], keepdims: bool) -> Blob:
    return reduced("reduce_sum", emit("square", x), axes, keepdims)


def _log_sum_exp(x: Blob, axes: Sequence[int], keepdims: bool) -> Blob:
    greatest = reduced("reduce_max", x, axes)
    total = reduced("reduce_sum", emit("exp", emit("broadcast_sub", x, greatest)), axes)
    y = emit("broadcast_add", emit("log", total), greatest)
    return y if keepdims else reshaped(y, [s for i, s in enumerate(x.shape) if i not in axes])


# --------------------------------------------------------------------------- normalisation


def _softmax(op: str) -> Importer:
    def run(n: Node) -> Blob:
        x = n.blob()
        rank = len(x.shape)
        if n.opset >= 13:
            return emit(op, x, axis=n.attr("axis", -1) % rank)
        axis = n.attr("axis", 1) % rank
        rows = reshaped(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
        return reshaped(emit(op, rows, axis=1), x.shape)

    return run


def _batch_norm(n: Node) -> Blob:
    if n.attr("training_mode", 0):
        n.unsupported("training_mode=1")
    x, gamma, beta = n.blob(0), n.blob(1), n.blob(2)
    moving = (n.blob(i, trainable=False) for i in (3, 4))
    attrs = {"epsilon": n.attr("epsilon", 1e-5), "momentum": n.attr("momentum", 0.9)}
    return emit("normalization", x, *moving, gamma, beta, axis=1, training=False, **attrs)[0]


def _layer_norm(n: Node) -> Blob:
    x, gamma = n.blob(0), n.blob(1)
    axis = n.attr("axis", -1) % len(x.shape)
    axes, epsilon = list(range(axis, len(x.shape))), n.attr("epsilon", 1e-5)
    if n.has(2) and tuple(gamma.shape) == tuple(n.blob(2).shape) == tuple(x.shape[axis:]):
        return emit(
            "layer_norm", x, n.blob(2), gamma, begin_norm_axis=axis, begin_params_axis=axis,
            epsilon=epsilon,
        )[0]  # fmt: skip
    y = emit("broadcast_mul", _centred(x, axes, epsilon), gamma)
    return emit("broadcast_add", y, n.blob(2)) if n.has(2) else y


def _centred(x: Blob, axes: Sequence[int], epsilon: float) -> Blob:
    """Shift and scale a blob to mean 0 and variance 1 over axes."""
    apart = emit("broadcast_sub", x, mean(x, axes))
    variance = plus(mean(emit("square", apart), axes), epsilon)
    return emit("broadcast_mul", apart, emit("rsqrt", variance))


def _per_channel(y: Blob, n: Node) -> Blob:
    shape = (-1, *[1] * (len(y.shape) - 2))
    scale, shift = (reshaped(n.blob(i), (n.blob(i).shape[0], *shape[1:])) for i in (1, 2))
    return emit("broadcast_add", emit("broadcast_mul", y, scale), shift)


def _instance_norm(n: Node) -> Blob:
    x = n.blob()
    return _per_channel(_centred(x, range(2, len(x.shape)), n.attr("epsilon", 1e-5)), n)


def _group_norm(n: Node) -> Blob:
    x, groups = n.blob(), n.attr("num_groups")
    if tuple(n.blob(1).shape) != (x.shape[1],):
        n.unsupported("a scale per group")
    parts = reshaped(x, (x.shape[0], groups, prod(x.shape[1:]) // groups))
    return _per_channel(reshaped(_centred(parts, [2], n.attr("epsilon", 1e-5)), x.shape), n)


def _global(compute: Callable[[Blob, Sequence[int], bool], Blob]) -> Importer:
    return lambda n: compute(n.blob(), range(2, len(n.blob().shape)), True)


IMPORTERS: Mapping[str, Importer] = {
    "AveragePool": _pool("avg"),
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "GlobalAveragePool": _global(mean),
    "GlobalMaxPool": _global(lambda x, axes, keep: reduced("reduce_max", x, axes, keep)),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax("log_softmax"),
    "MatMul": lambda n: product(n.blob(0), n.blob(1)),
    "MaxPool": _pool("max"),
    "ReduceL1": _reduction(lambda x, a, k: reduced("reduce_sum", emit("abs", x), a, k)),
    "ReduceL2": _reduction(lambda x, a, k: emit("sqrt", _of_squares(x, a, k))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _plain("reduce_max"),
    "ReduceMean": _reduction(mean),
    "ReduceMin": _plain("reduce_min"),
    "ReduceProd": _plain("reduce_prod"),
    "ReduceSum": _plain("reduce_sum"),
    "ReduceSumSquare": _reduction(_of_squares),
    "Resize": _resize,
    "Softmax": _softmax("softmax"),
}
