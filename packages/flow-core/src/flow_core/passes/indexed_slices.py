"""Sparse updates of embedding tables, for the variables that the job lists.

The dense gradient of a table adds up, at each row index, the gradients of the lookups of that row.
This pass replaces the table's update by an update that reads the gradients of the looked-up rows
and their indices, which avoids a gradient with the size of the table.  As in OneFlow's
``indexed_slices_optimizer_conf``, rows without a gradient keep their values and moments.  For
momentum and Adam, the result therefore differs from that of the dense update; for this reason, the
pass changes only the variables that the job lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flow_core.ir.graph import Attrs, Graph, Op
from flow_core.ir.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter


@dataclass(frozen=True)
class IndexedSlices:
    """A pass that restricts the updates of some tables to the looked-up rows."""

    variables: tuple[str, ...]  # names of the tables
    name: str = "indexed_slices"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without the dense gradients of the tables."""
        rewriter = Rewriter(graph)
        for op in graph.ops.values():
            if op.type in INDEXED and op.inputs[0].op in self.variables:
                gradient = _rows(rewriter, op)
                if gradient is not None:
                    rewriter.replace(op, _by_rows(op, gradient))
                    for gone in gradient.gone:
                        rewriter.drop(gone)
        return rewriter.finish()


@dataclass(frozen=True, slots=True)
class _Rows:
    """A dense gradient that is a sum of rows."""

    total: Op  # the op that sums the rows
    scale: float  # the factor by which the sum is multiplied
    gone: tuple[Op, ...]  # the ops that the sparse update makes unnecessary


def _rows(rewriter: Rewriter, update: Op) -> _Rows | None:
    """Return the rows of an update's gradient.

    Return None if another op reads the gradient, or if it is not a scaled sum of rows.
    """
    states = len(update.inputs) - len(BY_TYPE[update.type].inputs)
    if states or update.attrs["l1"] or update.attrs["l2"]:
        return None  # the update depends on a norm of gradients, a loss scale or all weights
    scale, gone, value = 1.0, list[Op](), update.inputs[1]
    while rewriter.only_reader(value) is not None:
        op = rewriter.graph.ops[value.op]
        gone.append(op)
        if op.type == "unsorted_segment_sum" and op.attrs["axis"] == 0:
            return _Rows(op, scale, tuple(gone))
        if op.type != "scalar_mul":
            return None
        scale *= op.attrs["operand"]
        (value,) = op.inputs
    return None


def _by_rows(update: Op, gradient: _Rows) -> Op:
    """Return the sparse form of the update."""
    model, _, *rest = update.inputs
    data, index = gradient.total.inputs
    attrs = {k: v for k, v in update.attrs.items() if k not in ("l1", "l2")}
    attrs["scale"] = update.attrs["scale"] * gradient.scale
    attrs["first"] = gradient.total.attrs["first"]
    inputs = (model, index, data, *rest)
    return replace(update, type=INDEXED_PREFIX + update.type, inputs=inputs, attrs=Attrs(attrs))
