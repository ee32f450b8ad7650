"""Blobs of several periods: a part of the job runs several times in each step.

Between ``flow.unpack`` (or ``flow.repeat``) and ``flow.pack`` (or ``flow.acc``) a blob has one
value per period, and an op on such blobs becomes one op per period.  Layers below the frontend see
ordinary ops only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

from flow_core.base.errors import JobError, user_line
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.sbp_request import Distribution
from flow_core.ir.graph import Value

F = TypeVar("F", bound=Callable[..., Any])


class PeriodBlob(BlobDef):
    """One blob per period; its shape and element type describe a single period.

    Attributes:
        periods: the blobs, in order; blobs of several periods where parts are nested.
    """

    __slots__ = ("periods",)

    def __init__(self, periods: Sequence[BlobDef]) -> None:
        first = periods[0]
        super().__init__(first.job, first._value, first.batch_axis, first.is_dynamic)
        self.periods = tuple(periods)

    def _fail(self) -> Any:
        raise JobError(
            f"use of {self!r}",
            at=user_line(3),
            found=f"a blob with a value for each of {len(self.periods)} periods of a step",
            allowed="ops on it, and blobs with one value per step as results",
            hint="flow.pack puts the values together, flow.acc adds them up",
        )

    @property
    def value(self) -> Value:
        """Always an error, as there is no single value."""
        return self._fail()  # type: ignore[no-any-return]

    @property
    def parts(self) -> tuple[Value, ...]:
        """Always an error, as `value`."""
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
        """The same blobs with a requested distribution."""
        return PeriodBlob([p.with_distribute(distribute) for p in self.periods])

    def __repr__(self) -> str:
        return f"PeriodBlob({len(self.periods)} x {self.periods[0]!r})"


def periods_of(inputs: Sequence[object]) -> int | None:
    """The number of periods of blobs; None if all have one value per step.

    Raises:
        JobError: the blobs have different numbers of periods.
    """
    found = {len(x.periods) for x in inputs if isinstance(x, PeriodBlob)}
    if len(found) > 1:
        raise JobError(
            "use of blobs of several periods in one op",
            at=user_line(4),
            found=", ".join(repr(x) for x in inputs if isinstance(x, PeriodBlob)),
            allowed="as many periods in all of them; blobs with one value per step go with any",
        )
    return found.pop() if found else None


def in_period(value: object, index: int) -> Any:
    """The value of a blob in one period; other values are returned unchanged."""
    return value.periods[index] if isinstance(value, PeriodBlob) else value


def joined(periods: Sequence[tuple[BlobDef, ...]]) -> tuple[BlobDef, ...]:
    """Combine the outputs of an op's copies."""
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
    """Apply a function to the innermost periods, for each of the outer ones."""
    if isinstance(blob, PeriodBlob) and isinstance(blob.periods[0], PeriodBlob):
        return PeriodBlob([innermost(p, function) for p in blob.periods])
    if not isinstance(blob, PeriodBlob):
        blob = PeriodBlob([blob])
    return function(blob)


def groups(blob: PeriodBlob, size: int) -> Iterator[tuple[BlobDef, ...]]:
    """Consecutive periods in groups of a size."""
    for start in range(0, len(blob.periods), size):
        yield blob.periods[start : start + size]
