"""``flow.scan``: a function that is traced once and applied along a sequence, with a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flow_core.api.array.bodies import (
    form_of,
    plain,
    read_outside,
    refusal,
    taken_out,
    traced,
    types_of,
)
from flow_core.base.errors import SourceLine, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import input_value
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.ir.graph import Op
from flow_core.ops.control.bodies import body_literal
from flow_core.ops.control.scan import scan_type

__all__ = ["scan"]

SCAN = "flow.scan"

Blobs = Blob | Sequence[Blob]


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Blobs,
    xs: Blobs | None = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Call ``state, y = body(state, x)`` for each element along axis 0, and stack the results.

    The function is traced once and creates its variables once.  The loop is one op: the time of
    compilation and the size of the plan do not depend on the length.  Ops of the function that
    depend neither on the state nor on the element run once, before the loop.  Random ops, such as
    dropout, draw other numbers at each position.

    A train job keeps the states of all positions; the gradient computes the function again at each
    position.  On several devices, an axis of the state and elements, such as that of the batch, is
    split if each op of the function can compute on parts; otherwise, each device runs the whole
    loop.  GPUs, and other devices without a kernel for loops, get the ops of each position.

    Args:
        body: a function of the state and of an element (None without ``xs``), which returns the
            next state, of the same form, shapes and element types, and a blob, a tuple of blobs, or
            None.
        init: the first state: a blob, or a tuple or list of blobs.
        xs: the sequence: a blob, or a tuple or list of blobs of equal sizes on axis 0.
        length: the number of positions, required without ``xs``.
        reverse: whether to go from the last element to the first; results stay in the order of
            ``xs``.

    Returns:
        The last state, and the results of all positions, stacked along a new axis 0.  Without
        positions, the last state is the first one.

    Raises:
        JobError: the state changes its form, or the lengths differ.
        UnsupportedError: the function writes variables, reads data, trains or watches, or has ops
            on other devices; or the blobs are of the mirrored view, of several periods, or of
            dynamic shape.

    >>> def body(total, element):
    ...     total = 0.5 * total + element
    ...     return total, total
    >>> last, totals = run(lambda x: flow.scan(body, flow.zeros((1,)), x), [[1], [2], [3], [4]])
    >>> totals.ravel(), last
    (array([1.   , 2.5  , 4.25 , 6.125], dtype=float32), array([6.125], dtype=float32))
    """
    at = user_line()
    job = current_job("scan")
    first, sequences = plain(SCAN, init, at), plain(SCAN, xs, at)
    count = _length(sequences, length, at)
    state = [_placeholder(job, blob, blob.shape, blob.batch_axis, at) for blob in first]
    elements = [_placeholder(job, x, x.shape[1:], _shifted(x, -1), at) for x in sequences]
    arguments = form_of(init)(state), form_of(xs)(elements)
    returned, made = traced(SCAN, job, body, arguments, at)
    if not isinstance(returned, tuple) or len(returned) != 2:
        found = f"a body that returns {returned!r:.60}"
        raise refusal(SCAN, found, "a tuple (state, result)", at)
    after, results = plain(SCAN, returned[0], at), plain(SCAN, returned[1], at)
    if types_of(after) != types_of(first):
        found, wanted = f"a next state of {types_of(after)}", types_of(first)
        raise refusal(SCAN, found, f"{wanted}, as the state before", at)
    given = [input_value(job, "scan", blob) for blob in (*first, *sequences)]
    inputs = [blob.value for blob in (*state, *elements)]
    own = [job.builder.ops[value.op] for value in inputs]
    ops = _varying(job, made, own)
    values = [input_value(job, "scan", blob) for blob in (*after, *results)]
    if job.kind == "train":
        values += inputs[: len(state)]  # which the gradient reads
    outside = read_outside(ops, inputs, values)
    literal = body_literal(ops, [*inputs, *outside], values)
    taken_out(SCAN, job, [*own, *ops], at)
    attrs = {
        "body": literal, "carries": len(state), "sequences": len(elements), "length": count,
        "reverse": reverse,
    }  # fmt: skip
    outputs = job.add(scan_type(literal), [*given, *outside], attrs, name="scan", line=at)
    last = [BlobDef(job, v, x.batch_axis) for v, x in zip(outputs, first, strict=False)]
    pairs = zip(outputs[len(last) :], results, strict=False)
    stacked = [BlobDef(job, value, _shifted(x, 1)) for value, x in pairs]
    return form_of(init)(last), form_of(returned[1])(stacked)


def _shifted(blob: BlobDef, by: int) -> int | None:
    """Return the axis of samples of an element or of stacked results; None if there is none."""
    axis = blob.batch_axis
    return None if axis is None or axis + by < 0 else axis + by


def _length(sequences: Sequence[BlobDef], length: int | None, at: SourceLine | None) -> int:
    """Return the number of positions."""
    if not sequences:
        if type(length) is not int or length < 0:
            raise refusal(SCAN, f"length={length!r} without xs", "an integer of at least 0", at)
        return length
    sizes = {blob.shape[0] if blob.shape else None for blob in sequences}
    if len(sizes) != 1 or None in sizes or length not in (None, *sizes):
        found = f"length={length} and shapes {[blob.shape for blob in sequences]}"
        raise refusal(SCAN, found, "one size of axis 0", at)
    return sequences[0].shape[0]


def _placeholder(
    job: JobBuild,
    blob: BlobDef,
    shape: tuple[int, ...],
    batch_axis: int | None,
    at: SourceLine | None,
) -> BlobDef:
    """Return a blob that stands for a state or an element while the body is traced."""
    attrs = {"shape": shape, "dtype": blob.dtype.name, "batch_axis": batch_axis}
    (value,) = job.add("input", (), attrs, name="scan/input", line=at)
    return BlobDef(job, value, batch_axis)


def _varying(job: JobBuild, made: Sequence[Op], inputs: Sequence[Op]) -> list[Op]:
    """Return the ops that depend on the state or an element, or draw random numbers."""
    found, names = list[Op](), {op.name for op in inputs}
    for op in [job.builder.ops.get(op.name) for op in made]:
        if op and (job.emitter.specs[op.type].random or any(v.op in names for v in op.inputs)):
            found.append(op)
            names.add(op.name)
    return found
