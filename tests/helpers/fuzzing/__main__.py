"""The command: `nox -s fuzz -- [FORMAT ...] [--cases N] [--seed S] [--case K]`."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuzzing.harness import Run, Score
from fuzzing.targets import TARGETS
from fuzzing.worker import MIB, Limits, Trial

FULL = 1_000_000
SHOWN = 5
"""Different failures of a format that are printed."""


def split(names: Sequence[str], cases: int) -> dict[str, int]:
    """The cases of each format, by their weights."""
    total = sum(TARGETS[name].weight for name in names)
    return {name: max(1, round(cases * TARGETS[name].weight / total)) for name in names}


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=", ".join(TARGETS))
    parser.add_argument("--cases", type=int, default=FULL, help="of all formats together")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, help="decides the cases; printed when not given")
    parser.add_argument("--case", type=int, help="try one case in this process, and show it")
    parser.add_argument("--keep", type=Path, help="with --case: write its input to this file")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    arguments = parser.parse_args()
    wrong = [name for name in arguments.formats if name not in TARGETS]
    if wrong:
        parser.error(f"no format {', '.join(wrong)}; there are {', '.join(TARGETS)}")
    if arguments.case is not None and (len(arguments.formats) != 1 or arguments.seed is None):
        parser.error("--case needs one format and --seed")
    return arguments


def rows(scores: Mapping[str, Score]) -> list[tuple[str, ...]]:
    """A row per format, and one of all of them."""
    found = [_row(name, score) for name, score in scores.items()]
    whole = Score(
        sum(s.read for s in scores.values()),
        sum(s.refused for s in scores.values()),
        [f for s in scores.values() for f in s.failures],
        sum(s.seconds for s in scores.values()),
        max((s.peak for s in scores.values()), default=0),
    )
    return [*found, _row("all", whole)]


def _row(name: str, score: Score) -> tuple[str, ...]:
    rate = f"{score.cases / score.seconds:,.0f}" if score.seconds else ""
    return (
        name, f"{score.cases:,}", f"{score.seconds:,.0f}", rate, f"{score.read:,}",
        f"{score.refused:,}", f"{len(score.failures):,}", f"{score.peak / MIB:,.0f}",
    )  # fmt: skip


HEADER = ("format", "cases", "CPU s", "per s", "read", "refused", "failed", "peak MiB")


def show(table: Sequence[tuple[str, ...]]) -> None:
    """Print a table, with rich where there is a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        made = Table(*HEADER)
        for row in table:
            made.add_row(*row)
        Console().print(made)
        return
    widths = [max(len(row[i]) for row in (HEADER, *table)) for i in range(len(HEADER))]
    for row in (HEADER, *table):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))


def show_failures(scores: Mapping[str, Score]) -> None:
    """Print each kind of failure once, with a command that repeats it."""
    for name, score in scores.items():
        kinds = Counter(failure.what.partition(", over")[0] for failure in score.failures)
        for what, count in kinds.most_common(SHOWN):
            example = next(f for f in score.failures if f.what.startswith(what))
            print(f"\n{name}: {count} times {example.what}")
            print(f"  {example.detail}\n  {example.command}")
        if len(kinds) > SHOWN:
            print(f"\n{name}: {len(kinds) - SHOWN} more kinds of failures")


def _try_one(name: str, seed: int, number: int, keep: Path | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(TARGETS[name], Path(folder), Limits())
        data = TARGETS[name].case(trial.seeds, seed, number)
        if keep is not None:
            keep.write_bytes(data)
        print(f"{len(data)} bytes: {data[:200]!r}")
        what, error = trial.attempt(seed, number)
    if error is not None:
        traceback.print_exception(error)
    print(what)
    return int(what not in ("read", "refused"))


def _progress(scores: Mapping[str, Score], total: int) -> None:
    if sys.stderr.isatty():
        done = sum(score.cases for score in scores.values())
        failed = sum(len(score.failures) for score in scores.values())
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{done:,} of {total:,} cases, {failed} failed".ljust(width)[:width])
        sys.stderr.flush()


def main() -> int:
    """Run the command; its status is 1 where a case failed."""
    arguments = _arguments()
    if arguments.case is not None:
        return _try_one(arguments.formats[0], arguments.seed, arguments.case, arguments.keep)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    counts = split(arguments.formats or list(TARGETS), arguments.cases)
    limits = Limits()
    print(f"seed {seed}: at most {limits.seconds:g} s and {limits.memory // MIB} MiB per case")
    until = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    run = Run(counts, seed, arguments.workers, limits, arguments.first, until)
    try:
        run.run(lambda scores: _progress(scores, sum(counts.values())))
    except KeyboardInterrupt:
        print("\nstopped")
    print()
    table = rows(run.scores)
    show(table)
    print(f"{run.seconds:.0f} s in {arguments.workers} processes, seed {seed}")
    show_failures(run.scores)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([dict(zip(HEADER, r, strict=True)) for r in table]))
    return int(any(score.failures for score in run.scores.values()))


if __name__ == "__main__":
    sys.exit(main())
