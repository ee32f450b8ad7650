"""Blobs with valid rows: only the first rows hold data, and their number is known at run time.

Memory is allocated for the largest number of rows.  The number of valid rows is a second blob; it
is propagated by ops that treat rows independently, which are the ops whose SBP rules allow a split
along the axis of the rows.  Fetched arrays are cut to the valid rows.  The other rows are zeros, so
that sums over rows and gradients need no special treatment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.base.errors import JobError, SourceLine, located
from flow_core.frontend.trace.blob import BlobDef
from flow_core.plugins.specs import OpSpec, SbpContext
from flow_core.sharding.sbp import B, P, Sbp, Signature, Split


@dataclass(frozen=True, slots=True)
class Rows:
    """The number of valid rows of a blob."""

    count: BlobDef  # the number, a blob of shape (1,)
    axis: int = 0


RESIZE = "sync_dynamic_resize"
"""The op that sets invalid rows to zero."""

WHOLE = ("cast_to_static_shape", RESIZE)
"""Ops all of whose output rows are valid."""

ADDING = (
    "batch_matmul", "matmul", "reduce_sum", "scatter_nd", "square_sum", "unsorted_segment_sum",
)  # fmt: skip
"""Ops that sum over rows; rows of zeros do not change the sum."""

POSITIONS = {
    "gather": 1, "gather_nd": 1, "tensor_scatter_nd_add": 2, "tensor_scatter_nd_update": 2,
}  # fmt: skip
"""Ops that read or write at positions, and the input that holds these.

Positions in invalid rows must be out of range, where such an op, its gradient, and the update of a
table from the gradient do nothing; the zeros of invalid rows would be the first position.
"""


def rows_passed(
    op_type: str,
    spec: OpSpec,
    inputs: Sequence[BlobDef],
    outputs: Sequence[BlobDef],
    line: SourceLine | None,
) -> tuple[Rows | None, ...]:
    """Return the valid rows of each output, given the valid rows of the inputs.

    Raises `JobError` if the op does not treat rows independently, or the inputs differ in their
    numbers of valid rows.
    """
    found = [x.rows for x in inputs if x.rows is not None]
    if not found or op_type in WHOLE:
        return (None,) * len(outputs)
    if op_type.startswith("tensor_scatter_nd") and _is_written_by_rows(*inputs[1:]):
        return (inputs[0].rows,)
    if all(rows.count.parts == found[0].count.parts for rows in found):
        for rule in _rules(spec, inputs, outputs):
            axes = _axes(rule, op_type, inputs, outputs)
            if axes is not None:
                return tuple(None if a is None else Rows(found[0].count, a) for a in axes)
    raise JobError(
        f"use of {op_type}",
        at=line,
        found="; ".join(_described(x) for x in inputs if x.rows is not None),
        allowed="ops that process rows independently or sum them, with equal valid rows",
        hint="use flow.cast_to_static_shape(blob), which makes the zero rows valid, too",
    )


def _is_written_by_rows(updates: BlobDef, indices: BlobDef) -> bool:
    """Return whether updates and their positions have the same valid rows."""
    rows, other = updates.rows, indices.rows
    if rows is None or other is None or rows.axis or other.axis:
        return False
    return bool(rows.count.parts == other.count.parts)


def _described(blob: BlobDef) -> str:
    return f"{blob!r}, of which {blob.rows.count.op_name!r} says how much counts of axis " + str(
        blob.rows.axis
    )


def _rules(
    spec: OpSpec, inputs: Sequence[BlobDef], outputs: Sequence[BlobDef]
) -> tuple[Signature, ...]:
    """Return the op's SBP rules, which hold for any number of devices."""
    builder = inputs[0].job.builder
    before, after = (
        tuple(builder.type_of(x.parts[0]) for x in blobs) for blobs in (inputs, outputs)
    )
    op = outputs[0].parts[0].op
    with located(builder.lines.get(op)):
        return tuple(spec.sbp(SbpContext(before, after, builder.ops[op].attrs)))


def _axes(
    rule: Signature, op_type: str, inputs: Sequence[BlobDef], outputs: Sequence[BlobDef]
) -> tuple[int | None, ...] | None:
    """Return the row axis of each output under an SBP rule; None if the rule does not apply."""
    split = tuple(B if x.rows is None else Split(x.rows.axis) for x in inputs)
    if rule.inputs != split:
        return None
    (size,) = {x.shape[x.rows.axis] for x in inputs if x.rows is not None}
    fits = all(
        _keeps(sbp, blob, size, op_type) for sbp, blob in zip(rule.outputs, outputs, strict=True)
    )
    axes = (sbp.axis if isinstance(sbp, Split) else None for sbp in rule.outputs)
    return tuple(axes) if fits else None


def _keeps(sbp: Sbp, output: BlobDef, size: int, op_type: str) -> bool:
    if isinstance(sbp, Split):
        return bool(output.shape[sbp.axis] == size)
    return sbp == P and op_type in ADDING


def all_rows(attempted: str, blob: BlobDef, line: SourceLine | None) -> BlobDef:
    """Return the blob; raise `JobError` if only some of its rows are valid."""
    if blob.rows is not None:
        raise JobError(
            attempted,
            at=line,
            found=_described(blob),
            allowed="blobs all of whose rows are valid",
            hint="use flow.cast_to_static_shape(blob), which makes the zero rows valid, too",
        )
    return blob
