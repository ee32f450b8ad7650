"""The verdicts of the oracle, and their tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from flow_core.observe.tables import Row, Table

EQUAL, INHERITED, ROUNDING = "equal", "inherited", "rounding"
WRONG_RULE, WRONG_BOXING = "wrong rule", "wrong boxing"
KINDS = (EQUAL, INHERITED, ROUNDING, WRONG_RULE, WRONG_BOXING)


@dataclass(frozen=True, slots=True)
class OpVerdict:
    """The comparison of an op on several devices with the op on one device, over all steps."""

    op: str
    type: str
    line: str  # the source line of the op
    signature: str  # of its inputs and outputs
    # "equal" (bitwise), "inherited" (the op's inputs already differ), "rounding" (rounding explains
    # the op's own error), "wrong rule" (the op's result differs for the same inputs) or "wrong
    # boxing" (boxing changed the inputs between producer and op).
    verdict: str = EQUAL
    # The largest difference from the result on one device, relative to the largest element.
    error: float = 0.0
    # The op's own error, in units of its bound: the error on the inputs that the op received,
    # divided by the largest error that rounding explains.
    own: float = 0.0
    step: int = -1  # the first step at which the op differs, or -1 if it never does
    note: str = ""  # description of the problem, or empty

    @property
    def wrong(self) -> bool:
        """Whether the difference is larger than rounding explains."""
        return self.verdict in (WRONG_RULE, WRONG_BOXING)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The oracle's verdict on a job."""

    job: str
    line: str  # of the job's definition
    devices: tuple[str, ...]  # text forms of the placements that were compared with one device
    steps: int  # how many steps were run
    # A verdict for each op, in graph order; the verdict of an update covers its variables.
    ops: tuple[OpVerdict, ...]
    repeatable: bool  # whether a second run was bitwise equal
    # Whether two conditions hold.  The results of the plan with all passes equal those of the
    # observed plan, without passes (or those of the plan for one device, if the job was distributed
    # for the check), within rounding.  They are bitwise equal with and without memory shared
    # between devices.
    as_planned: bool
    spread: bool  # whether the job, written for one device, was distributed over several
    # The largest difference between the results of the plan with passes and of the observed plan,
    # relative to the largest element; 0.0 if they are bitwise equal.
    drift: float = 0.0
    # The change of the results when weights and inputs are perturbed by a few roundings; measured
    # only if the drift is unusually large, else 0.0.
    moved: float = 0.0

    def to_json(self) -> str:
        """Return the verdict and those of all ops as JSON text."""
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)

    @property
    def first(self) -> OpVerdict | None:
        """The first op whose result differs from that on one device, or None."""
        return next((op for op in self.ops if op.verdict != EQUAL), None)

    @property
    def wrong(self) -> tuple[OpVerdict, ...]:
        """The ops with a wrong result."""
        return tuple(op for op in self.ops if op.wrong)

    @property
    def ok(self) -> bool:
        """Whether the job is repeatable and equals the plan for one device within rounding."""
        return not self.wrong and self.repeatable and self.as_planned


def verdict_tables(found: Verdict) -> Iterator[Table]:
    """Yield the tables that ``flow verify`` prints."""
    spread = ", spread over them for this check" if found.spread else ""
    title = f"job {found.job!r} at {found.line} on {', '.join(found.devices)}{spread}"
    yield Table(title, (), tuple(_summary(found)))
    shown = found.wrong or [op for op in found.ops if op.verdict != EQUAL]
    if shown:
        title = "ops that are wrong" if found.wrong else "ops that differ within rounding"
        columns = ("op", "type", "SBP", "", "error", "own / bound", "line")
        yield Table(title, columns, tuple(_row(op) for op in shown))
    notes = tuple((op.op, line) for op in found.wrong for line in op.note.splitlines())
    if notes:
        yield Table("what is wrong", (), notes)


def _summary(found: Verdict) -> Iterator[Row]:
    counts = dict.fromkeys(KINDS, 0)
    for op in found.ops:
        counts[op.verdict] += 1
    yield (f"ops compared over {found.steps} steps", str(len(found.ops)))
    yield from ((kind, str(count)) for kind, count in counts.items() if count)
    if found.first is not None:
        first = found.first
        yield ("first that differs", f"{first.op} ({first.type}) at {first.line or 'no line'}")
    worst = max(found.ops, key=lambda op: op.error, default=None)
    if worst is not None and worst.error:
        yield ("largest relative error", f"{worst.error:.1e} at {worst.op}")
    yield ("a second run gives the same bits", _yes(found.repeatable))
    held = "within rounding" if found.as_planned and found.drift else _yes(found.as_planned)
    far = f", {found.drift:.1e} apart" if found.drift else ""
    yield ("so does the plan with its passes and shared memory", held + far)
    if found.moved:
        row = "a few roundings of weights and inputs move results by"
        yield (row, f"{found.moved:.1e}")


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def _row(op: OpVerdict) -> Row:
    own = f"{op.own:.2f}"
    return (op.op, op.type, op.signature, op.verdict, f"{op.error:.1e}", own, op.line)
