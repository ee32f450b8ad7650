"""Updates of variables by sums of matrix products that are not stored in buffers.

``summed_sgd_update`` and its variants fuse `matmul`, `matmul_onto` and an update of
`flow_core.ops.training.optim`: each product is rounded, the products are added in order, and the
sum is the gradient.  Lowering builds these ops from the products of several devices that share
memory (`flow_core.compiler.memory.inplace_reduction`).  The inputs are those of the update without
its gradient, then ``scale_by_tensor`` if present, and then the operands of one product after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from flow_core.ir.graph import Attrs, AttrValue
from flow_core.ir.update_rules import COMMON, DIFF, MODEL, TABLE, Update
from flow_core.ops.declare import Attributes, OpDef, Types, specs
from flow_core.ops.math.matmul import MATMUL_ATTRS, matmul_reference
from flow_core.ops.training.update_references import summed_reference, summed_samples
from flow_core.plugins.specs import REQUIRED, InferContext, KernelQuery

PREFIX = "summed_"
PRODUCT_ATTRS = tuple(MATMUL_ATTRS)

ROWS: Mapping[str, Update] = {f"{PREFIX}{row.type}": row for row in TABLE if row.local}
"""The update that each op fuses with the computation of its gradient, by the type of that op."""

SUMMED: Mapping[str, str] = {row.type: name for name, row in ROWS.items()}
"""The type of the op that also computes the gradient, by the type of the update."""


def products(query: KernelQuery) -> Iterator[KernelQuery]:
    """Yield a kernel query for each matrix product of a fused update's query."""
    first = len(query.inputs) - 2 * int(query.attrs["parts"])
    attrs = Attrs({name: query.attrs[name] for name in PRODUCT_ATTRS})
    for at in range(first, len(query.inputs), 2):
        pair, model = query.inputs[at : at + 2], query.inputs[MODEL]
        yield replace(query, op="matmul", attrs=attrs, inputs=pair, outputs=(model,))


def update(query: KernelQuery) -> KernelQuery:
    """Return the kernel query of the update alone, with a gradient of the model's type."""
    row, model = ROWS[query.op], query.inputs[MODEL]
    rest = query.inputs[1 : len(query.inputs) - 2 * int(query.attrs["parts"])]
    attrs = Attrs({name: query.attrs[name] for name in (*COMMON, *row.attrs)})
    return replace(query, op=row.type, attrs=attrs, inputs=(model, model, *rest), outputs=())


def fused_attrs(
    update_attrs: Mapping[str, AttrValue], product_attrs: Mapping[str, AttrValue], parts: int
) -> Attrs:
    """Return the attributes of the op that fuses an update and its products."""
    own = {name: product_attrs[name] for name in PRODUCT_ATTRS}
    return Attrs({**update_attrs, **own, "parts": parts})


class SummedUpdate(OpDef):
    """An update and the products of which its gradient is the sum."""

    outputs = ()
    effect = True
    internal = True

    def __init__(self, row: Update) -> None:
        self.type = SUMMED[row.type]
        self.inputs = (*(n for i, n in enumerate(row.inputs) if i != DIFF), "more*")
        self.attrs: Attributes = {**COMMON, **row.attrs, **MATMUL_ATTRS, "parts": REQUIRED}
        self.mutates = tuple(i - (i > DIFF) for i in row.mutates)
        self.reference = summed_reference(row, matmul_reference, PRODUCT_ATTRS)
        self.samples = summed_samples(row)
        self.doc = f"`{row.type}` by the sum of matrix products, each rounded before it is added."

    def infer(self, ctx: InferContext) -> Types:
        model = ctx.inputs[MODEL]
        ctx.check(model.dtype.is_floating, f"{model}", "a floating variable")
        return ()


OPS = specs(*map(SummedUpdate, ROWS.values()))
