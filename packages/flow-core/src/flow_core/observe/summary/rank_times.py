"""``flow stragglers``: planned and measured times of the ranks of a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flow_core.base.errors import PlanError
from flow_core.observe.summary.screen import LINE, NAME, place
from flow_core.observe.tables import Row, Table, duration, shortened
from flow_core.runtime.stragglers import SLOW, Comparison, RankTimes

SHOWN = 16
"""The largest number of ranks that are printed: the slowest ones."""


def read_comparisons(file: str) -> list[Comparison]:
    """Read the last comparison of each job from a file that rank 0 of a program wrote.

    Raises `PlanError` if it is no such file.
    """
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
        return list(map(Comparison.of, data["jobs"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(
            f"reading {file}",
            found=f"{type(error).__name__}: {error}",
            allowed="a file that a program wrote with FLOW_STRAGGLERS",
            hint="flow-dist run -n 4 --stragglers FILE SCRIPT.PY",
        ) from error


def rank_tables(found: Comparison) -> Iterator[Table]:
    """Yield the tables that ``flow stragglers`` prints for a job."""
    names = ", ".join(f"rank {rank.rank}" for rank in found.slow) or "no rank"
    steps = f"steps {found.first} to {found.last} of job {found.job!r}"
    yield Table(f"{steps}, {len(found.ranks)} ranks: {names} slow ({SLOW:g} times or more)", (), ())
    ranks = sorted(found.ranks, key=lambda rank: -(rank.ratio or 0.0))
    columns = ("rank", "measured", "planned", "measured / planned", "times the median rank")
    rows = tuple(_row(rank) for rank in ranks[:SHOWN])
    yield Table("tasks of a step, without exchanges", columns, rows)
    for rank in found.slow:
        yield _ops(rank)


def _row(rank: RankTimes) -> Row:
    planned = f"{rank.seconds / rank.planned:.2f}" if rank.planned else ""
    ratio = "no op in common" if rank.ratio is None else f"{rank.ratio:.3f}"
    return str(rank.rank), duration(rank.seconds), duration(rank.planned), planned, ratio


def _ops(rank: RankTimes) -> Table:
    rows = tuple(
        (
            shortened(op.op, NAME),
            op.type,
            duration(op.seconds),
            duration(op.planned),
            duration(op.others),
            f"{op.seconds / op.others:.2f}" if op.others else "",
            shortened(place(op.line), LINE),
        )
        for op in rank.ops
    )
    columns = ("op", "type", "measured", "planned", "median rank", "ratio", "line")
    return Table(f"rank {rank.rank}: the ops that lose most time", columns, rows)
