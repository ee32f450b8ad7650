"""Blobs of several periods, which are the runs of a part of a job that is repeated in each step.

The repeated part is between ``flow.unpack`` (or ``flow.repeat``) and ``flow.pack`` (or
``flow.acc``).  There, a blob has one value per period, and an op on such blobs becomes one op per
period.  Layers below the frontend see only ordinary ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

from flow_core.base.errors import JobError
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.sbp_request import Distribution
from flow_core.ir.graph import Value

F = TypeVar("F", bound=Callable[..., Any])


class PeriodBlob(BlobDef):
    """One blob per period; its shape and element type describe a single period."""

    __slots__ = ("periods",)

    def __init__(self, periods: Sequence[BlobDef]) -> None:
        first = periods[0]
        super().__init__(first.job, first._value, first.batch_axis, first.is_dynamic)
        self.periods = tuple(periods)  # of blobs, or of `PeriodBlob` for nested parts

    def _fail(self) -> Any:
        raise JobError.at_caller(
            f"use of {self!r}",
            found=f"a blob with a value for each of {len(self.periods)} periods of a step",
            allowed="a job result with one value per step",
            hint="return flow.acc(blob), the sum over the periods, or flow.pack(blob, ...), their "
            "concatenation",
        )

    @property
    def value(self) -> Value:
        """Raises an error, because a blob of several periods has no single value."""
        return self._fail()  # type: ignore[no-any-return]

    @property
    def parts(self) -> tuple[Value, ...]:
        """Raises the same error as `value`."""
        return self._fail()  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in one period."""
        return self.periods[0].shape

    @property
    def op_name(self) -> str:
        """Name of the op that produces the first period's value."""
        return self.periods[0].op_name

    name = op_name

    def with_distribute(self, distribute: Distribution | None) -> BlobDef:
        """Return the blobs of all periods with a requested distribution."""
        return PeriodBlob([p.with_distribute(distribute) for p in self.periods])

    def __repr__(self) -> str:
        return f"PeriodBlob({len(self.periods)} x {self.periods[0]!r})"


def periods_of(inputs: Sequence[object]) -> int | None:
    """Return the number of periods of an op's inputs; None if all have one value per step.

    Raises `JobError` if the blobs have different numbers of periods.
    """
    found = {len(x.periods) for x in inputs if isinstance(x, PeriodBlob)}
    if len(found) > 1:
        raise JobError.at_caller(
            "use of blobs of several periods in one op",
            found=", ".join(repr(x) for x in inputs if isinstance(x, PeriodBlob)),
            allowed="blobs with as many periods as each other, or with one value per step",
        )
    return found.pop() if found else None


def in_period(value: object, index: int) -> Any:
    """Return the blob of one period of a `PeriodBlob`; return other values unchanged."""
    return value.periods[index] if isinstance(value, PeriodBlob) else value


def joined(periods: Sequence[tuple[BlobDef, ...]]) -> tuple[BlobDef, ...]:
    """Combine the outputs of an op's copies, given per period, into blobs of several periods."""
    return tuple(PeriodBlob(blobs) for blobs in zip(*periods, strict=True))


def per_period(function: F) -> F:
    """Decorate a function of blobs to be called once per period."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        periods = periods_of((*args, *kwargs.values()))
        if periods is None:
            return function(*args, **kwargs)
        return PeriodBlob(
            [
                function(
                    *(in_period(x, i) for x in args),
                    **{key: in_period(x, i) for key, x in kwargs.items()},
                )
                for i in range(periods)
            ]
        )

    return wrapped  # type: ignore[return-value]


def innermost(blob: BlobDef, function: Callable[[PeriodBlob], BlobDef]) -> BlobDef:
    """Apply a function to the innermost repeated part, once for each period of the outer parts."""
    if isinstance(blob, PeriodBlob) and isinstance(blob.periods[0], PeriodBlob):
        return PeriodBlob([innermost(p, function) for p in blob.periods])
    if not isinstance(blob, PeriodBlob):
        blob = PeriodBlob([blob])
    return function(blob)


def groups(blob: PeriodBlob, size: int) -> Iterator[tuple[BlobDef, ...]]:
    """Yield the blobs of consecutive periods in groups of a given size."""
    for start in range(0, len(blob.periods), size):
        yield blob.periods[start : start + size]
