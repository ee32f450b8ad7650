"""Type and attributes of a variable, on which the jobs of a session agree."""

from __future__ import annotations

from dataclasses import dataclass, field

from flow_core.base.arrays import Array
from flow_core.base.errors import SourceLine, VariableError
from flow_core.ir.graph import Attrs, TensorType


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """Type and attributes of a variable, on which the jobs of a session agree."""

    name: str  # unique in the session
    type: TensorType  # logical shape and element type
    attrs: Attrs  # of its ``variable`` op (initializer, trainable ...)
    job: str  # the job that first requested it
    line: SourceLine | None  # the source line of that request
    values: Array | None = field(default=None, compare=False, repr=False)  # of an array initializer

    def check_same(self, other: VariableInfo) -> None:
        """Raise `VariableError` with both source lines if another request differs from this."""
        checks: list[tuple[str, object, object]] = [("type", self.type, other.type)]
        for key in ("initializer", "seed"):
            checks.append((key, self.attrs.get(key), other.attrs.get(key)))
        for what, mine, theirs in checks:
            if mine != theirs:
                raise VariableError(
                    f"variable {self.name!r} in job {other.job!r}",
                    at=other.line,
                    found=f"{what} {theirs}",
                    allowed=f"{what} {mine}, as in job {self.job!r} at {self.line}",
                    hint="give it another name, or make both requests the same; to change it in "
                    f"this session, call flow.drop_variables({self.name!r}), which keeps all other "
                    "variables",
                )
