"""Updates of embedding tables by the rows that were looked up, where the job asks for it.

The dense gradient of a table is the sum of the looked-up rows' gradients at their indices.  Its
update is replaced by one that gets rows and indices, so that no gradient of the table's size is
made; and, as in OneFlow's ``indexed_slices_optimizer_conf``, rows without a gradient keep their
values and moments.  That is other arithmetic than the dense update's for momentum and Adam,
which is why the variables are named one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flow_core.ir.graph import Attrs, Graph, Op, Value, rebuild
from flow_core.ir.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX
from flow_core.passes.base import PassContext


@dataclass(frozen=True)
class IndexedSlices:
    """Updates of some tables touch the looked-up rows only.

    Attributes:
        variables: names of the tables.
    """

    variables: tuple[str, ...]
    name: str = "indexed_slices"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph in which the tables' dense gradients are gone."""
        readers = graph.consumers()
        ops = dict(graph.ops)
        for op in graph.ops.values():
            if op.type in INDEXED and op.inputs[0].op in self.variables:
                gradient = _rows(graph, readers, op)
                if gradient is not None:
                    ops[op.name] = _by_rows(op, gradient)
                    for gone in gradient.gone:
                        del ops[gone]
        return rebuild(graph, ops.values()) if len(ops) < len(graph.ops) else graph


@dataclass(frozen=True, slots=True)
class _Rows:
    """A dense gradient that is a sum of rows.

    Attributes:
        total: the op that sums them.
        scale: what the sum is multiplied by after it.
        gone: names of the ops that the update does without.
    """

    total: Op
    scale: float
    gone: tuple[str, ...]


def _rows(graph: Graph, readers: Mapping[Value, list[Op]], update: Op) -> _Rows | None:
    """The rows of an update's gradient, where nothing else reads it or takes part in it."""
    states = len(update.inputs) - len(BY_TYPE[update.type].inputs)
    if states or update.attrs["l1"] or update.attrs["l2"]:
        return None  # the norm of all gradients or a loss scale goes into it, or all weights do
    scale, gone, value = 1.0, [], update.inputs[1]
    while len(readers[value]) == 1 and value not in graph.results:
        op = graph.ops[value.op]
        gone.append(op.name)
        if op.type == "unsorted_segment_sum" and op.attrs["axis"] == 0:
            return _Rows(op, scale, tuple(gone))
        if op.type != "scalar_mul":
            return None
        scale *= op.attrs["operand"]
        (value,) = op.inputs
    return None


def _by_rows(update: Op, gradient: _Rows) -> Op:
    """The update in its form for rows."""
    model, _, *rest = update.inputs
    data, index = gradient.total.inputs
    attrs = {k: v for k, v in update.attrs.items() if k not in ("l1", "l2")}
    attrs["scale"] = update.attrs["scale"] * gradient.scale
    attrs["first"] = gradient.total.attrs["first"]
    inputs = (model, index, data, *rest)
    return replace(update, type=INDEXED_PREFIX + update.type, inputs=inputs, attrs=Attrs(attrs))
