"""Updates that change only those rows of a table that were looked up.

Each op takes ``(model, model_diff_indices, model_diff_values, learning_rate, states...)``: the
gradient of row i is the sum of the rows of ``model_diff_values`` whose index is i.  Indexed rows
follow the rule of `flow_core.ir.update_rules`; all other rows keep their values *and their states*:
neither decay of moments nor weight decay applies to them.  Indices out of range have no effect.
The attribute ``first`` is the index of the table's first row, as in `ops.array.index`.
"""

from __future__ import annotations

from flow_core.base.dtypes import float32
from flow_core.ir.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX, Update
from flow_core.ops.array.index import checked_index, first_input, from_row
from flow_core.ops.declare import Attributes, OpDef, Types, specs
from flow_core.ops.training.optim import check_states
from flow_core.ops.training.schedules import is_number
from flow_core.ops.training.update_references import indexed_reference, indexed_samples
from flow_core.plugins.specs import InferContext, SbpContext
from flow_core.sharding.sbp import B, S, Signature, Signatures, signature

MODEL, INDICES, VALUES, RATE, STATES = range(5)


class IndexedUpdate(OpDef):
    """An op that updates the rows of a table that have a gradient."""

    outputs = ()
    numbers = (RATE,)
    effect = True
    localize = staticmethod(from_row(first_input, lambda _: 0))
    doc = "Update the rows of a table that have a gradient; see the module's docstring."

    def __init__(self, row: Update) -> None:
        self.row = row
        self.type = INDEXED_PREFIX + row.type
        given = "model", "model_diff_indices", "model_diff_values", "learning_rate"
        self.inputs = (*given, *row.states)
        self.attrs: Attributes = {"scale": 1.0, "weight_decay": 0.0, "first": 0, **row.attrs}
        self.mutates = (MODEL, *range(STATES, STATES + len(row.states)))
        self.reference, self.samples = indexed_reference(row), indexed_samples(row)

    def infer(self, ctx: InferContext) -> Types:
        model, values = ctx.inputs[MODEL], ctx.inputs[VALUES]
        index = checked_index(ctx, INDICES)
        ctx.check(
            model.shape and model.dtype.is_floating, f"model of type {model}", "floating rows"
        )
        ctx.check(
            values.shape == (*index.shape, *model.shape[1:]) and values.dtype.is_floating,
            f"rows of type {values} at indices {index}",
            f"a row of {list(model.shape[1:])} per index",
        )
        rate = ctx.inputs[RATE]
        ctx.check(is_number(rate, float32), f"learning_rate of type {rate}", "float32[]")
        check_states(ctx, self.row, STATES)
        return ()

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split tables by rows, so that each device updates its own rows, or split the axes within
        rows.
        """
        model, index = ctx.inputs[MODEL], ctx.inputs[INDICES]
        return tuple(_rule(ctx, axis, len(index.shape)) for axis in range(len(model.shape)))


def _rule(ctx: SbpContext, axis: int, rank: int) -> Signature:
    states = (S(axis),) * (len(ctx.inputs) - STATES)
    values = S(axis - 1 + rank) if axis else B
    return signature((S(axis), B, values, B, *states), ())


OPS = specs(*(IndexedUpdate(BY_TYPE[type_]) for type_ in INDEXED))
