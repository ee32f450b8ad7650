"""Importers of reductions over axes, and of sums along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from flow_onnx.importers.context import Blob, Importer, Node, as_type, reshaped, widened
from flow_onnx.importers.elementwise import clipped
from flow_onnx.importers.folding import emit

Reduce = Callable[[Blob, Sequence[int], bool], Blob]
"""A reduction of a blob over axes; the last argument tells whether to keep these axes."""


def reduced(op: str, x: Blob, axes: Sequence[int], keepdims: bool = True) -> Blob:
    """Reduce axes of a blob; no axes leave it unchanged."""
    if not axes:
        return emit("identity", x)
    y = emit(op, x, axis=tuple(axes), keepdims=True)
    kept = [s for i, s in enumerate(x.shape) if i not in axes]
    return y if keepdims else reshaped(y, kept)


def _in(kind: Callable[[Blob], Blob], compute: Reduce) -> Reduce:
    """Return a reduction that is computed in another type, and converted back."""
    return lambda x, axes, keep: as_type(compute(kind(x), axes, keep), x.dtype.name)


def _real(x: Blob) -> Blob:
    return widened(x) if x.dtype.is_floating else as_type(x, "float64")


def mean(x: Blob, axes: Sequence[int], keepdims: bool = True) -> Blob:
    """Return the mean over axes; that of integers is truncated."""
    return reduced("reduce_mean", x, axes, keepdims)


def _of_squares(x: Blob, axes: Sequence[int], keepdims: bool) -> Blob:
    return reduced("reduce_sum", emit("square", x), axes, keepdims)


def _norm(x: Blob, axes: Sequence[int], keepdims: bool) -> Blob:
    return emit("sqrt", _of_squares(x, axes, keepdims))


def _log_sum_exp(x: Blob, axes: Sequence[int], keepdims: bool) -> Blob:
    """Return log(sum(exp(x - m))) + m for the largest element m or, if infinite, a finite number.

    With a finite m, rows of -inf have the sum 0, and rows with inf the sum inf.
    """
    largest = float(np.finfo(x.dtype.numpy).max)
    m = clipped(reduced("reduce_max", x, axes), -largest, largest)
    total = reduced("reduce_sum", emit("exp", emit("broadcast_sub", x, m)), axes)
    y = emit("broadcast_add", emit("log", total), m)
    return y if keepdims else reshaped(y, [s for i, s in enumerate(x.shape) if i not in axes])


def _reduction(compute: Reduce) -> Importer:
    def run(n: Node) -> Blob:
        x = n.blob()
        rank, given = len(x.shape), n.ints_of("axes", 1)
        axes = [] if given is None else n.axes(given, rank)
        if not axes and not n.attr("noop_with_empty_axes", 0):
            axes = list(range(rank))
        n.attr("noop_with_empty_axes")
        return compute(x, sorted(axes), bool(n.attr("keepdims", 1)))

    return run


def _log_sum_exp_of(n: Node) -> Blob:
    if not n.blob().dtype.is_floating:
        n.unsupported("integers, whose logarithms runtimes round in different ways")
    return _reduction(_in(widened, _log_sum_exp))(n)


def _plain(op: str) -> Reduce:
    return lambda x, axes, keepdims: reduced(op, x, axes, keepdims)


def _extreme(op: str, of_truth: str) -> Importer:
    """Return the importer of a maximum or minimum, which of booleans is any or all."""

    def run(n: Node) -> Blob:
        is_bool = n.elements[0] == TensorProto.BOOL
        return _reduction(_plain(of_truth if is_bool else op))(n)

    return run


def _global(compute: Reduce) -> Importer:
    return lambda n: compute(n.blob(), range(2, len(n.shape())), True)


def _cumulative(n: Node) -> Blob:
    x, (axis,) = n.blob(), n.axes([int(n.number(1, "an axis", 0))], len(n.shape()))
    flags = {name: bool(n.attr(name, 0)) for name in ("exclusive", "reverse")}
    return emit("cumsum", x, axis=axis, **flags)


IMPORTERS: Mapping[str, Importer] = {
    "CumSum": _cumulative,
    "GlobalAveragePool": _global(mean),
    "GlobalMaxPool": _global(_plain("reduce_max")),
    "ReduceL1": _reduction(lambda x, a, k: reduced("reduce_sum", emit("abs", x), a, k)),
    "ReduceL2": _reduction(_in(_real, _norm)),
    "ReduceLogSumExp": _log_sum_exp_of,
    "ReduceMax": _extreme("reduce_max", "reduce_any"),
    "ReduceMean": _reduction(mean),
    "ReduceMin": _extreme("reduce_min", "reduce_all"),
    "ReduceProd": _reduction(_plain("reduce_prod")),
    "ReduceSum": _reduction(_plain("reduce_sum")),
    "ReduceSumSquare": _reduction(_in(widened, _of_squares)),
}
