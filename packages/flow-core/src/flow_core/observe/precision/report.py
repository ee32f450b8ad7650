"""What ``flow verify --precision`` reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from flow_core.frontend.config.function_config import FLOAT32_OPS
from flow_core.observe.precision.search import Kept
from flow_core.observe.tables import Row, Table

SHOWN = 10
"""The number of ops that the printed report shows; the JSON report has all of them."""


@dataclass(frozen=True, slots=True)
class OpError:
    """The errors of an op in mixed precision.

    Errors are the largest difference from float64 of any step and output, relative to the largest
    element.
    """

    op: str
    type: str
    line: str
    dtype: str  # the type in which the op computes
    own: float  # error if the op reads the inputs of the float64 run, rounded to its input types
    error: float  # the error in the run in mixed precision, with the errors of its inputs


@dataclass(frozen=True, slots=True)
class Output:
    """The error of a result, of the gradient of a variable, or of an updated variable."""

    kind: str  # "result", "gradient" or "variable"
    name: str  # the op that computes the result, or the variable
    error: float  # the error in mixed precision, as of `OpError`
    single: float  # the error if all ops compute in float32


@dataclass(frozen=True, slots=True)
class Precision:
    """A job in mixed precision beside the job in float64."""

    job: str
    line: str  # of the job's definition
    type: str  # the half type
    tolerance: float  # the allowed error of outputs
    steps: int
    named: tuple[str, ...]  # the ops that the job's settings already keep in float32
    # The number of ops that compute in the half type, except those that only move numbers.
    candidates: int
    ops: tuple[OpError, ...]  # the errors of all ops, in graph order
    outputs: tuple[Output, ...]  # the errors of results, gradients and updated variables
    # The further ops to keep in float32 so that the tolerance holds; None if it does not hold in
    # float32.
    kept: Kept | None

    @property
    def undetermined(self) -> tuple[Output, ...]:
        """The outputs that are beyond the tolerance even if all ops compute in float32."""
        return tuple(out for out in self.outputs if out.single > self.tolerance)

    @property
    def ok(self) -> bool:
        """Whether the tolerance holds without further ops in float32."""
        results = any(out.kind == "result" for out in self.undetermined)
        return not results and self.kept is not None and not self.kept.ops

    @property
    def code(self) -> str:
        """The line of a program that keeps the ops in float32; empty if none is needed."""
        if self.kept is None or not self.kept.ops:
            return ""
        names = ", ".join(json.dumps(name) for name in (*self.named, *self.kept.ops))
        return f"config.{FLOAT32_OPS}([{names}])"

    def to_json(self) -> str:
        """Return everything as JSON text."""
        smallest = self.kept is not None and self.kept.smallest
        more = {"ok": self.ok, "code": self.code, "smallest": smallest}
        return json.dumps({**more, **asdict(self)}, indent=2)


def precision_tables(found: Precision) -> Iterator[Table]:
    """Yield the tables that ``flow verify --precision`` prints."""
    title = (
        f"job {found.job!r} at {found.line}: {found.steps} steps in {found.type} beside float64, "
        f"tolerance {found.tolerance:g}"
    )
    outputs = sorted(found.outputs, key=lambda out: -out.error)
    rows = tuple(_output(found, out) for out in outputs[:SHOWN])
    yield Table(title, ("", "name", found.type, "float32", ""), rows)
    ops = sorted(found.ops, key=lambda op: -op.own)
    yield Table(
        f"ops with the largest own errors, of {len(found.ops)}",
        ("op", "type", "computes in", "own error", "error", "line"),
        tuple(_op(op) for op in ops[:SHOWN]),
    )
    yield Table(_conclusion(found), (), ((found.code,),) if found.code else ())


def _output(found: Precision, out: Output) -> Row:
    verdict = "ok" if out.error <= found.tolerance else "TOO FAR"
    if out in found.undetermined:
        verdict = "not even in float32"
    return out.kind, out.name, f"{out.error:.1e}", f"{out.single:.1e}", verdict


def _op(op: OpError) -> Row:
    return op.op, op.type, op.dtype, f"{op.own:.1e}", f"{op.error:.1e}", op.line


def _conclusion(found: Precision) -> str:
    kept = found.kept
    if kept is None:
        return "the tolerance does not hold in float32"
    if not kept.ops:
        return f"the tolerance holds with all {found.candidates} ops in {found.type}"
    how = (
        "all smaller sets were tried"
        if kept.smallest
        else f"found greedily; no set of fewer than {kept.tried_below} ops holds it"
    )
    return (
        f"the tolerance holds with {len(kept.ops)} of {found.candidates} ops in float32 "
        f"({how}: {kept.trials} trials)"
    )
