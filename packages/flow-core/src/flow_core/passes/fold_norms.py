"""Fold batch normalization in inference into the preceding convolution.

With moving statistics, the normalization (norm) is ``x * scale + shift``, with one scale and one
shift per channel. The scale multiplies the convolution's weights; the shift becomes a bias, which
backends fuse with an addition and relu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op, Value
from flow_core.passes.base import PassContext
from flow_core.passes.inference_norms import NormParts, changed_values, channel_axis, constant_norms
from flow_core.passes.rewriting.decomposition import cast_to
from flow_core.passes.rewriting.derived_values import constants_of_variables
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.plugins.specs import OpSpec

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


@dataclass(frozen=True)
class FoldNorms:
    """The pass that folds norms into convolutions.

    Attributes:
        device: the device type whose ops are replaced.
        pays: returns whether folding saves time, if the weights are multiplied in each step; None
            to fold only where they are multiplied after writes to variables only.
    """

    device: str = "cpu"
    pays: Callable[[Graph, Op], bool] | None = None
    name: str = "fold_norms"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with inference norms replaced by biases."""
        rewriter = Rewriter(graph)
        norms = constant_norms(rewriter, context.specs, self.device)
        changed = changed_values(graph, context.specs) if norms else set()
        once = (
            constants_of_variables(graph, context.specs)
            if norms and self.pays is None
            else frozenset()
        )
        for norm in norms:
            conv, add = _before(rewriter, norm)
            if conv is None:
                continue
            bias = () if add is None else add.inputs[1:]
            parameters = (conv.inputs[1], *bias, *norm.inputs[1:])
            if self.pays is None:
                folds = all(value.op in once for value in parameters)
            else:
                folds = self.pays(graph, conv)
            if folds and not changed & {conv.inputs[1], _wide_weight(graph, conv), *bias}:
                _fold(rewriter, context.specs, norm, conv, add)
        return rewriter.finish()


def _before(rewriter: Rewriter, norm: Op) -> tuple[Op | None, Op | None]:
    """Return the convolution that only this norm reads, and the bias addition between the two."""
    graph, add = rewriter.graph, None
    made = graph.ops[norm.inputs[0].op]
    if made.type == "bias_add" and rewriter.only_reader(made.output(), norm.type):
        add, made = made, graph.ops[made.inputs[0].op]
    reader = norm if add is None else add
    fits = made.type in CONVOLUTIONS and rewriter.only_reader(made.output(), reader.type)
    channel = channel_of(graph, made) if fits else None
    if any(channel_axis(graph, op) != channel for op in (norm, add) if op is not None):
        return None, None
    alone = norm.placement == made.placement and not made.control
    return (made, add) if alone else (None, None)


def channel_of(graph: Graph, conv: Op) -> int:
    """Return the axis of a convolution's channels."""
    first = conv.attrs["data_format"] == "channels_first"
    return 1 if first else len(graph.type_of(conv.output()).shape) - 1


def _wide_weight(graph: Graph, conv: Op) -> Value:
    """Return the weights before their cast to a 16-bit type, if they are cast."""
    weight = conv.inputs[1]
    cast, wide = graph.ops[weight.op], graph.type_of(weight).dtype.accumulate
    fits = cast.type == "cast" and graph.type_of(cast.inputs[0]).dtype is wide
    return cast.inputs[0] if fits else weight


def _fold(
    rewriter: Rewriter, specs: Mapping[str, OpSpec], norm: Op, conv: Op, add: Op | None
) -> None:
    """Replace a norm by its convolution with scaled weights, followed by a bias addition.

    If the weights are cast, they are multiplied by the scale before the cast.
    """
    parts, graph = NormParts.of(rewriter, specs, norm), rewriter.graph
    maker, dtype = parts.maker, graph.type_of(conv.output()).dtype
    scale, shift = parts.scale_and_shift(None if add is None else add.inputs[1])
    weight = cast_to(parts.sym(_wide_weight(graph, conv)), dtype.accumulate)
    filters, *rest = weight.shape
    factor = maker.one("reshape", scale, shape=(filters, *(1 for _ in rest)))
    weight = cast_to(weight * factor, dtype)
    made = maker.one(conv.type, parts.sym(conv.inputs[0]), weight, **conv.attrs)
    parts.finish("bias_add", made, cast_to(shift, dtype), axis=norm.attrs["axis"])
    for op in (conv, add):
        if op is not None:
            rewriter.drop(op)
