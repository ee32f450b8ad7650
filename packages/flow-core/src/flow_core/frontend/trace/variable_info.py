"""Type and attributes of a variable, on which the jobs of a session agree."""

from __future__ import annotations

from dataclasses import dataclass, field

from flow_core.base.arrays import Array
from flow_core.base.errors import SourceLine, VariableError
from flow_core.ir.graph import Attrs, TensorType


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """Type and attributes of a variable, on which the jobs of a session agree.

    Attributes:
        name: its name, unique in the session.
        type: logical shape and element type.
        attrs: attributes of its ``variable`` op (initializer, trainable ...).
        job: the job that first requested it.
        line: the source line of that request.
        values: the initial values, if the initializer is an array.
    """

    name: str
    type: TensorType
    attrs: Attrs
    job: str
    line: SourceLine | None
    values: Array | None = field(default=None, compare=False, repr=False)

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
