"""Softmax cross entropy for logits that are split along the class axis.

The loss op needs all classes of an example.  If the requested SBP of the logits splits the classes,
as for a vocabulary-parallel layer, this pass avoids gathering the logits: each device computes the
maximum, the sum of exponentials and the logit at the label for its part of the classes, as partial
results.  This takes three all-reduces of one number per example instead of a gather of the logits;
the gradient takes no all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from flow_core.base.dtypes import int64
from flow_core.ir.graph import Graph, Op, Value
from flow_core.ops.build import Maker, Sym
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.decomposition import (
    Parts,
    Rule,
    cast_to,
    decompose,
    emit_with_sbp,
    with_sbp,
)
from flow_core.sharding.sbp import B, NdSbp, S, Split

LOSS = "sparse_softmax_cross_entropy"


@dataclass(frozen=True)
class SplitClasses:
    """A pass that decomposes sparse softmax cross entropy over split classes, and its gradient."""

    name: str = "split_classes"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph in which no loss op reads logits with split classes."""
        rules = dict(_rules(graph))
        return decompose(graph, context, rules) if rules else graph


def _rules(graph: Graph) -> Iterator[tuple[str, Rule]]:
    taken: dict[Value, NdSbp] = {}
    for op in graph.ops.values():
        if op.type == LOSS and (layout := _split(graph, op)) is not None:
            taken[op.output()] = layout
            yield op.name, partial(_loss, layout=layout)
        elif op.type == f"{LOSS}_grad" and op.inputs[0] in taken:
            yield op.name, partial(_gradient, layout=taken[op.inputs[0]])


def _split(graph: Graph, op: Op) -> NdSbp | None:
    """Return the requested SBP of the logits if it splits the class axis, else None."""
    value = op.inputs[0]
    maker, last = graph.ops[value.op], len(graph.type_of(value).shape) - 1
    requested = maker.sbp[value.index] if maker.sbp else None
    same = maker.placement == op.placement
    return requested if requested and same and S(last) in requested else None


def _loss(maker: Maker, op: Op, *, layout: NdSbp) -> Parts:
    """Emit the ops for ``prob`` and the loss; they subtract the maximum logit against overflow."""
    logits, label = (Sym(maker, v) for v in op.inputs)
    x, classes = cast_to(logits, logits.dtype.accumulate), len(logits.shape) - 1
    whole = _whole(layout, classes)
    label = with_sbp(label, whole)
    shifted = x - _over_classes("reduce_max", x, whole)
    powers = maker.one("exp", shifted)
    total = _over_classes("reduce_sum", powers, whole)
    index = maker.one("reshape", label, shape=(*label.shape, 1))
    chosen = with_sbp(maker.one("dim_gather", shifted, index, dim=classes), whole)
    loss = maker.one("reshape", maker.one("log", total) - chosen, shape=label.shape)
    known = cast_to(_is_class(label, op.attrs["depth"]), loss.dtype)
    prob = with_sbp(cast_to(powers / total, logits.dtype), layout)
    return prob, cast_to(loss / known, logits.dtype)


def _whole(layout: NdSbp, classes: int) -> NdSbp:
    """Return the SBP of per-example values: broadcast in each dimension that splits the classes."""
    return tuple(sbp if isinstance(sbp, Split) and sbp != S(classes) else B for sbp in layout)


def _over_classes(reduction: str, x: Sym, whole: NdSbp) -> Sym:
    reduced = x.maker.one(reduction, x, axis=(len(x.shape) - 1,), keepdims=True)
    return with_sbp(reduced, whole)


def _is_class(label: Sym, depth: int) -> Sym:
    """Return 1 for each label that is a valid class, else 0, which makes the loss infinite."""
    label = cast_to(label, int64)
    below = label.maker.one("scalar_logical_less", label, operand=depth)
    return below * label.maker.one("scalar_logical_greater_equal", label, operand=0)


def _gradient(maker: Maker, op: Op, *, layout: NdSbp) -> Parts:
    prob, label, dy = (Sym(maker, v) for v in op.inputs)
    depth, dtype = op.attrs["depth"], prob.dtype.name
    wide = maker.one("reshape", dy, shape=(*dy.shape, 1))
    label = with_sbp(label, _whole(layout, len(label.shape)))
    hot = emit_with_sbp(maker, layout, "one_hot", label, depth=depth, dtype=dtype)
    return (with_sbp(prob - hot, layout) * wide,)
