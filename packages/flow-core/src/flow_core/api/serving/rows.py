"""Whether each row of a job's results depends on the same row of its inputs alone.

If this holds, a batch may consist of rows of several requests.  The proof is by the SBP signatures
of the ops: with a device per row, each op on the way from the inputs to the results must have a
signature that splits the first axis of all values that depend on inputs.
"""

from __future__ import annotations

from flow_core.api.serving.batch_sizes import where
from flow_core.base.errors import FlowError, user_line
from flow_core.compiler.select.candidates import NdSignature, signatures
from flow_core.frontend.job.exported import traced_for_export
from flow_core.frontend.job.function import AnyJob
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.exporters import ExportedJob
from flow_core.sharding.sbp import Partial, Split

ROWS = (2, 3)
"""The traced batch sizes: an axis of another meaning does not have both lengths."""


def mixed_rows(job: AnyJob) -> str:
    """Return the first op that may mix the rows of a batch; "" if every row is independent.

    Args:
        job: a predict job of any batch size.
    """
    attempted = f"looking for independent rows in job {job.name!r}"
    exported = traced_for_export(job, attempted, user_line(2))
    types = {name: exported.graph.type_of(value) for name, value in exported.inputs.items()}
    if not types or not all(type_.shape for type_ in types.values()) or exported.retrace is None:
        return "inputs without a batch axis"
    try:
        for rows in ROWS:
            shapes = {name: (rows, *type_.shape[1:]) for name, type_ in types.items()}
            found = _mixing(exported.retrace(shapes), rows)
            if found:
                return found
    except FlowError as error:
        return f"{error.attempted}: {error.found}"
    return ""


def _mixing(job: ExportedJob, rows: int) -> str:
    graph = job.graph
    split = set(job.inputs.values())
    for op in graph.ops.values():
        if split.isdisjoint(op.inputs) or op.type == "input":
            continue
        spec = job.specs[op.type]
        found = signatures(graph, op, spec, (rows,))
        if spec.overwrites(op.attrs) or not any(_by_rows(op, s, split) for s in found):
            return where(graph, op)
        split |= {Value(op.name, i) for i in range(len(graph.types[op.name]))}
    return _unsplit_result(graph, split)


def _by_rows(op: Op, signature: NdSignature, split: set[Value]) -> bool:
    """Return whether an op computes a row from a row; other inputs may be whole or split."""
    inputs = zip(op.inputs, signature.inputs, strict=True)
    return all(
        sbp == Split(0) if value in split else not isinstance(sbp, Partial)
        for value, (sbp,) in inputs
    ) and all(sbp == Split(0) for (sbp,) in signature.outputs)


def _unsplit_result(graph: Graph, split: set[Value]) -> str:
    whole = [value for value in graph.results if value not in split]
    return f"the result {whole[0]}, which does not depend on the inputs" if whole else ""
