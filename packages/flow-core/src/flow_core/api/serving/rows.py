"""Whether each row of a job's results depends on the same row of its inputs alone.

If this holds, a batch may consist of rows of several requests.  The proof is by the SBP signatures
of the ops: with a device per row, each op on the way from the inputs to the results must have a
signature that splits the first axis of all values that depend on inputs, and all devices must run
the same op, whose attributes do not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flow_core.api.serving.batch_sizes import where
from flow_core.base.errors import FlowError, user_line
from flow_core.compiler.select.candidates import NdSignature, signatures
from flow_core.frontend.job.exported import traced_for_export
from flow_core.frontend.job.function import AnyJob
from flow_core.ir.graph import AttrValue, Graph, Op, TensorType, Value
from flow_core.plugins.exporters import ExportedJob
from flow_core.plugins.specs import LocalContext, OpSpec, Part, local_attrs
from flow_core.sharding.sbp import B, Sbp, Split

ROWS = (2, 3)
"""The traced batch sizes: an axis of another meaning does not have both lengths."""
FILL = "constant"
"""The op whose results have equal rows, which may be split or not."""


def mixed_rows(job: AnyJob) -> str:
    """Return the first op that may mix the rows of a batch; "" if every row is independent.

    Args:
        job: a predict job of any batch size.
    """
    attempted = f"looking for independent rows in job {job.name!r}"
    exported = traced_for_export(job, attempted, user_line(2))
    types = {name: exported.graph.type_of(value) for name, value in exported.inputs.items()}
    retrace = exported.retrace
    if not types or not all(type_.shape for type_ in types.values()) or retrace is None:
        return "inputs without a batch axis"

    def sized(rows: int) -> ExportedJob:
        return retrace({name: (rows, *type_.shape[1:]) for name, type_ in types.items()})

    try:
        single, parts = sized(1).graph, dict[str, Mapping[str, AttrValue]]()
        found = (_mixing(sized(rows), single, rows, parts) for rows in ROWS)
        return next(filter(None, found), "")
    except FlowError as error:
        return f"{error.attempted}: {error.found}"


def _mixing(
    job: ExportedJob, single: Graph, rows: int, parts: dict[str, Mapping[str, AttrValue]]
) -> str:
    """Return the first op that may mix rows.

    Args:
        job: the job for a number of rows.
        single: its graph for one row.
        rows: the number of rows.
        parts: the attributes of the op of each device, by name of the op; filled by the first call.
    """
    graph = job.graph
    split, equal = set(job.inputs.values()), set[Value]()
    for op in graph.ops.values():
        if op.type == "input":
            continue
        spec, alone = job.specs[op.type], single.ops.get(op.name)
        if alone is None or alone.type != op.type or spec.overwrites(op.attrs):
            return where(graph, op)
        if not split.isdisjoint(op.inputs):
            part = _Part(graph, op, spec, rows)
            found = (part.by_rows(s, split, equal) for s in signatures(graph, op, spec, (rows,)))
            attrs, outputs = next(filter(None, found), (None, ()))
            if attrs is None or parts.setdefault(op.name, attrs) != attrs:
                return where(graph, op)
            split |= {Value(op.name, i) for i, sbp in enumerate(outputs) if sbp == Split(0)}
        elif op.type == FILL and _without_shape(op) == _without_shape(alone):
            equal.add(op.output())
        elif op.attrs != alone.attrs:
            return where(graph, op)
    wrong = (v for v in graph.results if v not in split or graph.type_of(v).shape[:1] != (rows,))
    return next(
        (f"the result {value}, which has no row per row of the inputs" for value in wrong), ""
    )


def _without_shape(op: Op) -> dict[str, AttrValue]:
    return {name: value for name, value in op.attrs.items() if name != "shape"}


@dataclass(frozen=True, slots=True)
class _Part:
    """An op that is split over a device per row."""

    graph: Graph
    op: Op
    spec: OpSpec
    rows: int

    def by_rows(
        self, signature: NdSignature, split: set[Value], equal: set[Value]
    ) -> tuple[Mapping[str, AttrValue], list[Sbp]] | None:
        """Return the attributes of the op of each device, and the SBP of its outputs.

        Outputs that are whole although rows are split do not depend on rows.  None says that a
        device needs other rows, or that the devices run different ops.
        """
        ins = [sbp for (sbp,) in signature.inputs]
        outs = [sbp for (sbp,) in signature.outputs]
        given = zip(self.op.inputs, ins, strict=True)
        if any(sbp not in (B, Split(0)) for sbp in outs) or not all(
            sbp == Split(0) if v in split else sbp == B or (sbp == Split(0) and v in equal)
            for v, sbp in given
        ):
            return None
        first, *others = (self._attrs(rank, ins, outs) for rank in range(self.rows))
        return (first, outs) if all(other == first for other in others) else None

    def _attrs(self, rank: int, ins: list[Sbp], outs: list[Sbp]) -> Mapping[str, AttrValue]:
        types = self.graph.input_types(self.op), self.graph.types[self.op.name]
        own = [
            tuple(self._part(rank, *pair) for pair in zip(side, sbps, strict=True))
            for side, sbps in zip(types, (ins, outs), strict=True)
        ]
        return local_attrs(self.spec, LocalContext(self.op.attrs, *own))

    def _part(self, rank: int, type_: TensorType, sbp: Sbp) -> Part:
        region = [(0, size) for size in type_.shape]
        if sbp == Split(0):
            size = type_.shape[0] // self.rows
            region[0] = (rank * size, (rank + 1) * size)
        return Part(type_, tuple(region))
