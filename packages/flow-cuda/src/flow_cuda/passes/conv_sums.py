"""Compute the sums that batch normalization needs in training in the preceding convolution.

If cuDNN has a plan for a convolution that also outputs the sums of its result and of the result's
squares, the normalization (norm) reads that result once instead of twice. The norm becomes a
multiplication and an addition with one number per channel each, which are fused with the ops that
follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.gradients import Sym
from flow_core.authoring.inference_norms import (
    CONVOLUTIONS,
    NormParts,
    channel_axis,
    channel_of,
)
from flow_core.authoring.pass_api import PassContext, Rewriter, like_op
from flow_core.authoring.specs import Graph, KernelQuery, Op, Value, tensor_type
from flow_core.base.dtypes import float32
from flow_cuda.cudnn.pass_base import CudnnPass, planned
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.device.config import allows_tf32, sums_in_convolutions
from flow_cuda.kernels.dnn import conv_problem, takes_norm, takes_sums
from flow_cuda.passes.convolutions import REWRITES, SHARED, first_device

Pair = tuple[Op, Op]
"""A convolution and the norm that reads it."""


@dataclass(frozen=True)
class ConvSums(CudnnPass):
    """The pass that computes the sums of norms in convolutions.

    Attributes:
        wanted: whether the pass is enabled.
    """

    wanted: bool = False
    name: str = "cudnn_conv_sums"

    def find(self, rewriter: Rewriter) -> list[Pair]:
        """Return the convolutions whose results only a training norm and its gradient read."""
        graph = rewriter.graph
        norms = self.of(graph, "normalization") if self.wanted else []
        return [(graph.ops[op.inputs[0].op], op) for op in norms if _sums(rewriter, op)]

    def rewrite(
        self, rewriter: Rewriter, found: Sequence[Pair], plans: DnnPlans, context: PassContext
    ) -> None:
        """Replace convolutions by convolutions with sums, and the norms by ops on these sums."""
        allowed = self.search(tf32=allows_tf32(context.settings))
        for conv, norm in found:
            query = _query(rewriter.graph, conv)
            choice = plans.choose(conv_problem(query), allowed) if takes_sums(query) else None
            if choice is not None:
                op = planned(like_op(conv, query.op, query.attrs, conv.inputs), choice)
                rewriter.replace(conv, op, query.outputs)
                _normalize(NormParts.of(rewriter, context.specs, norm))


def _sums(rewriter: Rewriter, norm: Op) -> bool:
    """Whether a convolution may compute the sums of a norm."""
    graph, conv = rewriter.graph, rewriter.graph.ops[norm.inputs[0].op]
    if not norm.attrs["training"] or conv.type not in CONVOLUTIONS or conv.type not in REWRITES:
        return False
    readers = rewriter.readers(conv.output())
    alone = {op.type for op in readers} <= {"normalization", "normalization_grad"}
    moving = {op.name for v in norm.inputs[1:3] for op in rewriter.readers(v)}
    query = KernelQuery(norm.type, norm.attrs, _types(graph, norm), graph.types[norm.name])
    last = conv.attrs["data_format"] == "channels_last"
    fits = last and channel_axis(graph, norm) == channel_of(graph, conv)
    one = [op.name for op in readers if op.type == norm.type] == [norm.name]
    plain = not rewriter.is_result(conv.output()) and norm.placement == conv.placement
    return alone and one and moving == {norm.name} and fits and plain and takes_norm(query)


def _types(graph: Graph, op: Op) -> tuple[Any, ...]:
    return tuple(map(graph.type_of, op.inputs))


def _query(graph: Graph, conv: Op) -> KernelQuery:
    """Return the op that replaces the convolution."""
    attrs = {name: conv.attrs[name] for name in SHARED} | {
        "padding_after": conv.attrs["padding_after"] or conv.attrs["padding_before"],
        "activation": "",
        "compute": "float32",
    }
    y = graph.type_of(conv.output())
    row = tensor_type((graph.type_of(conv.inputs[1]).shape[0],), float32)
    return KernelQuery("cudnn_conv_sums", attrs, _types(graph, conv), (y, row, row))


def _normalize(parts: NormParts) -> None:
    """Replace a norm and its statistics by ops on the sums from the convolution.

    For inputs of 16-bit types, the difference of float32 sums is accurate enough; relu clamps the
    variance at 0.
    """
    norm, maker = parts.norm, parts.maker
    x, *_ = norm.inputs
    _, moving_mean, moving_variance, gamma, beta = map(parts.sym, norm.inputs)
    total, squares = (parts.sym(Value(x.op, i)) for i in (1, 2))
    count = parts.sym(x).type.size // total.type.size
    mean = total * (1 / count)
    variance = maker.one("relu", squares * (1 / count) - mean * mean)
    inverse = maker.one("rsqrt", variance + norm.attrs["epsilon"])
    scale = inverse * gamma
    shift = beta - scale * mean
    momentum = norm.attrs["momentum"]
    _move(moving_mean, momentum, mean, 1.0)
    _move(moving_variance, momentum, variance, count / max(count - 1, 1))
    parts.apply(scale, shift)
    for index, statistic in enumerate((mean, inverse), 1):
        parts.rewriter.replace_value(norm.output(index), statistic.value)


def _move(moving: Sym, momentum: float, value: Sym, factor: float) -> None:
    """Update a moving statistic with the statistic of the batch."""
    new = moving * momentum + value * ((1 - momentum) * factor)
    moving.maker.all("assign", moving, new)


def configured() -> ConvSums:
    """Return the pass, which takes plans from the first device."""
    return ConvSums(first_device, wanted=sums_in_convolutions())
