"""Parts of a job that run several times per step: `unpack`, `pack`, `repeat`, `acc`.

Each of these runs is called a period of the step.
"""

from __future__ import annotations

from flow_core.api.session.views import cast_to_current_logical_view
from flow_core.base.errors import InferenceError, SourceLine, user_line
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.frontend.trace.repeat_acc import PeriodBlob, groups, innermost

__all__ = ["acc", "pack", "repeat", "unpack"]


def _fail(function: str, line: SourceLine | None, found: str, allowed: str) -> None:
    raise InferenceError(f"flow.{function}", at=line, found=found, allowed=allowed)


def _check_number(function: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        _fail(function, user_line(3), f"{number!r} periods", "a number of at least 1")


def unpack(input: Blob, unpack_num: int, name: str | None = None) -> BlobDef:
    """Divide the rows of a blob into ``unpack_num`` equal micro-batches, processed in turn.

    Ops on the result run once per period, until `pack` or `acc` combines the periods.  The periods
    of a step share the step's devices, memory and variables.  The gradient of `unpack` is `pack`.

    Args:
        input: a blob of rank 1 or more.
        unpack_num: number of periods, a divisor of the size of axis 0.

    Returns: A blob that has shape ``(input.shape[0] / unpack_num, ...)`` in each period.

    Raises: InferenceError: ``unpack_num`` does not divide the size of axis 0.

    >>> run(lambda x: flow.pack(2 * flow.unpack(x, 2), 2), [1, 2, 3, 4])
    array([2., 4., 6., 8.], dtype=float32)
    """
    _check_number("unpack", unpack_num)
    if isinstance(input, PeriodBlob):
        return PeriodBlob([unpack(p, unpack_num, name) for p in input.periods])
    input = cast_to_current_logical_view(input)
    if not input.shape or input.shape[0] % unpack_num:
        _fail("unpack", user_line(), f"{input!r} in {unpack_num} parts", "a number that divides it")
    sizes = (input.shape[0] // unpack_num,) * unpack_num
    parts = emit("split", input, axis=0, sizes=sizes, name=name or "unpack")
    for part in parts:
        part.batch_axis = input.batch_axis
    return PeriodBlob(parts)


def pack(input: Blob, pack_num: int, name: str | None = None) -> BlobDef:
    """Concatenate the values of ``pack_num`` periods along axis 0; the inverse of `unpack`.

    Args:
        input: a blob of rank 1 or more that has ``pack_num`` periods.
        pack_num: number of periods.

    Returns: A blob with ``pack_num`` times as many rows.

    Raises: InferenceError: the number of periods is not ``pack_num``, or ``input`` is a scalar.

    >>> run(lambda x: flow.pack(2 * flow.unpack(x, 2), 2), [1, 2, 3, 4])
    array([2., 4., 6., 8.], dtype=float32)
    """
    input = checked_blob(input)
    _check_number("pack", pack_num)
    line = user_line()

    def joined(blob: PeriodBlob) -> BlobDef:
        if len(blob.periods) != pack_num or not blob.shape:
            found = f"{blob!r} for pack_num={pack_num}"
            _fail("pack", line, found, "as many periods, and rank 1 or more")
        whole: BlobDef = emit("concat", *blob.periods, axis=0, name=name or "pack")
        whole.batch_axis = blob.batch_axis
        return whole

    return innermost(input, joined)


def repeat(input: Blob, repeat_num: int, name: str | None = None) -> BlobDef:
    """Repeat a blob in each of ``repeat_num`` periods; the gradient of `repeat` is `acc`.

    Blobs with one value per step, such as variables, combine with any number of periods, so
    `repeat` is needed only if no other input of an op determines the number of periods.

    Args:
        input: a blob.
        repeat_num: the number of periods.

    Returns: A blob with a value in each period.

    >>> run(lambda x: flow.acc(flow.repeat(x, 3), 3), [1, 2, 3, 4])
    array([ 3.,  6.,  9., 12.], dtype=float32)
    """
    _check_number("repeat", repeat_num)
    return PeriodBlob([checked_blob(input)] * repeat_num)


def acc(one: Blob, max_acc_num: int, name: str | None = None) -> BlobDef:
    """Sum the values of every ``max_acc_num`` consecutive periods.

    Args:
        one: a blob that has several periods.
        max_acc_num: number of values to sum, a divisor of the number of periods.

    Returns: A blob with one value per step if all periods are summed, otherwise a blob with fewer
        periods.

    Raises: InferenceError: ``max_acc_num`` does not divide the number of periods.

    >>> run(lambda x: flow.acc(flow.unpack(x, 2), 2), [1, 2, 3, 4])
    array([4., 6.], dtype=float32)
    """
    one = checked_blob(one)
    _check_number("acc", max_acc_num)
    line = user_line()

    def added(blob: PeriodBlob) -> BlobDef:
        if len(blob.periods) % max_acc_num:
            _fail("acc", line, f"{blob!r} for max_acc_num={max_acc_num}", "a number that divides")
        sums = [
            emit_one("add_n", *group, name=name or "acc") for group in groups(blob, max_acc_num)
        ]
        return sums[0] if len(sums) == 1 else PeriodBlob(sums)

    return innermost(one, added)
