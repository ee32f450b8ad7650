"""The report of ``flow replay``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flow_core.base.arrays import Array
from flow_core.observe.replay.run import Difference, Replay, ReplayedOp
from flow_core.observe.summary.screen import LINE, NAME, place
from flow_core.observe.tables import Row, Table, shortened
from flow_core.runtime.finite_check import described

SHOWN = 24
"""The largest number of ops that are printed: the last ones."""

SAME = {
    True: "the results have the bits of those recorded",
    False: "the results DIFFER from those recorded: the step is not deterministic",
    None: "no results were recorded",
}


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A replayed step, and its comparison with another run."""

    replay: Replay
    kept: tuple[int, ...]  # the numbers of the recorded steps of the job
    other: str = ""  # where the step ran again; empty if it ran once
    difference: Difference | None = None  # first op whose bits differ there, None if all are equal
    compared: int = 0  # the number of ops that both runs have

    @property
    def ok(self) -> bool:
        """Whether the replay has the recorded bits, and the other run those of the replay."""
        return self.replay.same is not False and self.difference is None

    def to_json(self) -> str:
        """Return everything but the values as JSON text."""
        found, first = self.replay, self.difference
        data: dict[str, Any] = {
            "ok": self.ok,
            "job": found.job,
            "step": found.step,
            "kept": list(self.kept),
            "same": found.same,
            "error": found.error,
            "ops": [_op_data(op) for op in found.ops],
            "other": self.other,
            "compared": self.compared,
            "difference": None,
        }
        if first is not None:
            numbers = {"output": first.output, "count": first.count, "largest": first.largest}
            data["difference"] = _op_data(first.op) | numbers | {"equal": first.equal}
        return json.dumps(data, indent=2)


def _op_data(op: ReplayedOp) -> dict[str, Any]:
    outputs = [{"type": _type(x), "range": described_range(x)} for x in op.outputs]
    return {"name": op.name, "type": op.type, "line": op.line, "outputs": outputs}


def described_range(array: Array) -> str:
    """Describe the range of an array's elements.

    >>> import numpy as np
    >>> described_range(np.array([True, False])), described_range(np.array([1.0, 2.0]))
    ('1 of 2 true', 'from 1 to 2')
    """
    if array.dtype.kind == "b":
        return f"{int(array.sum()):,} of {array.size:,} true"
    return described(array)


def replay_tables(found: ReplayReport) -> Iterator[Table]:
    """Yield the tables that ``flow replay`` prints."""
    replay = found.replay
    text = f"step {replay.step} of job {replay.job!r}, of steps {found.kept[0]} to {found.kept[-1]}"
    outcome = "the step fails" if replay.error else SAME[replay.same]
    yield Table(f"{text}: {outcome}", (), ())
    if replay.error:
        yield Table("error", (), tuple((line,) for line in replay.error.splitlines()))
    if found.other:
        yield _comparison(found)
        return
    rows = [row for op in replay.ops[-SHOWN:] for row in _rows(op)]
    more = f", the last {SHOWN}" if len(replay.ops) > SHOWN else ""
    columns = ("op", "type", "result", "range", "line")
    yield Table(f"values of {len(replay.ops)} ops{more}", columns, tuple(rows))


def _rows(op: ReplayedOp) -> Iterator[Row]:
    for k, array in enumerate(op.outputs):
        name = shortened(op.name, NAME) + (f":{k}" if k else "")
        line = shortened(place(op.line), LINE)
        yield name, op.type, _type(array), described_range(array), line


def _comparison(found: ReplayReport) -> Table:
    first = found.difference
    title = f"the same step {found.other}"
    if first is None:
        missing = len(found.replay.ops) - found.compared
        more = f"; {missing} of the first plan's ops are not in the second" if missing else ""
        return Table(f"{title}: the same bits in {found.compared} ops{more}", (), ())
    rows: list[Row] = [
        ("first op that differs", f"{first.op.name} ({first.op.type})"),
        ("line", place(first.op.line) or "none"),
        ("elements", f"{first.count:,} of {first.op.outputs[first.output].size:,}"),
    ]
    if first.largest is not None:
        rows.append(("largest difference", f"{first.largest:.3g}"))
    rows.append(("ops before it", f"{first.equal} with the same bits"))
    return Table(title, (), tuple(rows))


def _type(array: Array) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
