"""``flow.scan``: a function that is traced once and applied along a sequence, with a state.

The ops that depend on the state or on the elements are copied for each position, as gradient
accumulation copies those of a micro-batch; the others, such as variables, are shared.  Gradients,
SBP selection and memory planning then need no rules for loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.api.array.bodies import Form, form_of, plain, refusal, traced, types_of
from flow_core.api.array.parts import unbind
from flow_core.api.array.select import stack
from flow_core.base.errors import SourceLine, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.ir.graph import Op, Value

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

    The function is traced once, whatever the length, and creates its variables once; a step has the
    ops of all positions, so that compiling takes time in proportion to the length.  Random ops,
    such as dropout, draw other numbers at each position.

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
        The last state, and the results of all positions, stacked along a new axis 0.

    Raises:
        JobError: the state changes its form, or the lengths differ.
        UnsupportedError: the function writes variables, reads data, trains or watches; or the
            blobs are of the mirrored view, of several periods, or of dynamic shape.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((4, 1))) -> tuple[tp.Numpy, tp.Numpy]:
        ...     def body(total, element):
        ...         total = 0.5 * total + element
        ...         return total, total
        ...
        ...     return flow.scan(body, flow.zeros((1,)), x)
        >>> last, totals = job([[1], [2], [3], [4]])
        >>> totals.ravel(), last
        (array([1.   , 2.5  , 4.25 , 6.125], dtype=float32), array([6.125], dtype=float32))
    """
    at = user_line()
    job = current_job("scan")
    state = plain(SCAN, init, at)
    elements = _elements(xs, length, at)
    order = elements[::-1] if reverse else elements
    body_of = _traced(job, body, state, order[0], form_of(init), form_of(xs), at)
    states, results = [body_of.state], [body_of.results]
    for position, element in enumerate(order[1:], 1):
        values = body_of.copied(position, states[-1], element)
        states.append([values[blob.value] for blob in body_of.state])
        results.append([values[blob.value] for blob in body_of.results])
    ys = [stack(list(parts)) for parts in zip(*results[:: -1 if reverse else 1], strict=True)]
    return body_of.state_form(states[-1]), body_of.results_form(ys)


def _elements(xs: Any, length: int | None, at: SourceLine | None) -> list[list[BlobDef]]:
    """Return the elements of each position."""
    if xs is None:
        if not isinstance(length, int) or length < 1:
            raise refusal(SCAN, f"length={length!r} without xs", "a positive integer", at)
        return [[] for _ in range(length)]
    blobs = plain(SCAN, xs, at)
    sizes = {blob.shape[0] if blob.shape else None for blob in blobs}
    if len(sizes) != 1 or None in sizes or length not in (None, *sizes):
        found = f"length={length} and shapes {[blob.shape for blob in blobs]}"
        raise refusal(SCAN, found, "one size of axis 0, at least 1", at)
    return [list(row) for row in zip(*map(unbind, blobs), strict=True)]


@dataclass(frozen=True)
class _Body:
    """The ops of the first position.

    Attributes:
        job: the job.
        ops: the ops that depend on the state or the elements, or draw random numbers.
        inputs: the values of the first state and elements within the body.
        state, results: the blobs that the body returned.
        state_form, results_form: make lists of blobs what the body takes and returns.
    """

    job: JobBuild
    ops: Sequence[Op]
    inputs: Sequence[Value]
    state: Sequence[BlobDef]
    results: Sequence[BlobDef]
    state_form: Form
    results_form: Form

    def copied(
        self, position: int, state: Sequence[BlobDef], element: Sequence[BlobDef]
    ) -> Mapping[Value, BlobDef]:
        """Add the ops of another position, and return the blobs in place of the body's."""
        builder, emitter = self.job.builder, self.job.emitter
        given = zip(self.inputs, (*state, *element), strict=True)
        values = {value: blob.value for value, blob in given}
        for op in self.ops:
            name = builder.unique_name(f"{op.name}/{position}")
            outputs = emitter.emit(
                op.type, [values.get(v, v) for v in op.inputs], op.attrs,
                placement=op.placement, name=name, line=builder.lines.get(op.name), sbp=op.sbp,
                control=op.control,
            )  # fmt: skip
            values |= {op.output(i): output for i, output in enumerate(outputs)}
            for names in self.job.segments.values():
                if op.name in names:
                    names.append(name)
        returned = (*self.state, *self.results)
        return {
            blob.value: BlobDef(self.job, values.get(blob.value, blob.value), blob.batch_axis)
            for blob in returned
        }


def _traced(
    job: JobBuild,
    body: Any,
    init: Sequence[BlobDef],
    element: Sequence[BlobDef],
    state_form: Form,
    element_form: Form,
    at: SourceLine | None,
) -> _Body:
    """Call the function for the first position, and return its ops."""
    # identities, since the function may also read the same blobs from outside
    state, element = ([emit_one("identity", blob) for blob in part] for part in (init, element))
    arguments = state_form(state), element_form(element)
    returned, made = traced(SCAN, job, lambda: body(*arguments), at)
    if not isinstance(returned, tuple) or len(returned) != 2:
        found = f"a body that returns {returned!r:.60}"
        raise refusal(SCAN, found, "a tuple (state, result)", at)
    after = plain(SCAN, returned[0], at)
    if types_of(after) != types_of(init):
        found, wanted = f"a next state of {types_of(after)}", types_of(init)
        raise refusal(SCAN, found, f"{wanted}, as the state before", at)
    inputs = [blob.value for blob in (*state, *element)]
    results = plain(SCAN, returned[1], at)
    ops = _varying(job, made, inputs)
    return _Body(job, ops, inputs, after, results, state_form, form_of(returned[1]))


def _varying(job: JobBuild, made: Sequence[Op], inputs: Sequence[Value]) -> list[Op]:
    """Return the ops to copy for each position."""
    found, names = list[Op](), {value.op for value in inputs}
    for op in made:
        if job.emitter.specs[op.type].random or any(v.op in names for v in op.inputs):
            found.append(op)
            names.add(op.name)
    return found
