"""The one-screen report of ``flow plan``: where time and memory go, and what to try."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from textwrap import shorten, wrap

from flow_core.observe.document import PlanDocument
from flow_core.observe.measure import NOT_MEASURED, Measured
from flow_core.observe.summary.advice import advice
from flow_core.observe.summary.op_times import by_class
from flow_core.observe.tables import (
    Row,
    Table,
    count_bytes,
    duration,
    fitted,
    share,
    shortened,
)
from flow_core.plan import ArenaPlan, Plan, Transfer

WIDTH = 100
"""The largest number of characters of a line."""

CLASSES, DEVICES, OWNERS, TRANSFERS, ALTERNATIVES, NOTES, WARNINGS, ADVICE = 6, 3, 3, 5, 1, 2, 3, 3
"""The largest number of rows of each part of the report."""

WARNING = 480
"""The largest number of characters of a warning."""

NAME, LINE = 46, 34
"""The largest number of characters of the name of a tensor and of a source line."""


def summary_tables(
    doc: PlanDocument, measured: Measured = NOT_MEASURED, width: int = WIDTH
) -> Iterator[Table]:
    """Yield the tables of the report, each at most ``width`` characters wide."""
    for table in _tables(doc, measured):
        yield fitted(table, width)


def _tables(doc: PlanDocument, measured: Measured) -> Iterator[Table]:
    plan = doc.plan
    half = plan.settings.get("mixed_precision_data_type")
    counts = f"{doc.traced:,} ops traced, {len(plan.tasks):,} tasks per step on "
    counts += f"{_count(len(plan.arenas), 'device')}, {len(plan.prologue):,} run once"
    counts += f", {len(plan.derived):,} when variables change" if plan.derived else ""
    counts += f", mixed precision in {half}" if half else ""
    title = shortened(f"{doc.kind} job {doc.job!r} at {place(doc.line)}", WIDTH)
    yield Table(f"{title}\n{counts}", (), ())
    yield _times(plan, measured)
    yield from _memory(plan)
    if plan.ledger:
        yield from _transfers(plan)
    if doc.warnings:
        rows = [(shorten(text, WARNING, placeholder=" ..."),) for text in doc.warnings[:WARNINGS]]
        yield Table("warnings", (), (*rows, *_more(len(doc.warnings), WARNINGS)))
    if doc.notes:
        rows = [(text,) for text in doc.notes[:NOTES]]
        yield Table("model parallel without a hint", (), (*rows, *_more(len(doc.notes), NOTES)))
    if found := list(advice(doc, measured)):
        yield Table("what to try", (), tuple((text,) for text in found[:ADVICE]))
    ran = "No step was run; --measure runs steps on random inputs."
    if measured.steps:
        ran = f"{_count(measured.steps, 'step')} ran on random inputs and separate variables."
    model = f"Predictions are by the cost model {plan.costs}." if plan.costs else ""
    ran = "\n".join((*wrap(model, WIDTH), ran))
    yield Table(f"{ran}\n--full prints all ops, tasks, buffers and transfers.", (), ())


def place(line: str) -> str:
    """Return a source line with the path relative to the working directory, if it is below it."""
    return line.removeprefix(os.getcwd() + os.sep)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _more(count: int, most: int) -> list[Row]:
    return [(f"and {count - most:,} more",)] if count > most else []


def _times(plan: Plan, measured: Measured) -> Table:
    found = by_class(plan, measured.spans)
    total = sum(c.seconds for c in found)
    rows = [
        (c.name, str(c.tasks), duration(c.seconds), share(c.seconds, total), _mostly(c.types))
        for c in found[:CLASSES]
    ]
    if rest := found[CLASSES:]:
        seconds = sum(c.seconds for c in rest)
        tasks = str(sum(c.tasks for c in rest))
        rows.append(("others", tasks, duration(seconds), share(seconds, total), ""))
    title = f"time of a step: {duration(total)} of tasks, predicted"
    if measured.steps:
        title = (
            f"time of a step: {duration(measured.seconds)}, {duration(total)} of tasks, "
            f"median of {_count(measured.steps, 'step')}"
        )
        title += ": not representative" if measured.steps == 1 else ""
    return Table(title, ("class of ops", "tasks", "time", "share", "op types"), tuple(rows))


def _mostly(types: Iterable[str]) -> str:
    names = list(types)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _memory(plan: Plan) -> Iterator[Table]:
    ranked = sorted(plan.arenas, key=lambda a: -a.nbytes)
    states = {str(a.device): 0 for a in ranked}
    for i in plan.variables.values():
        buffer = plan.buffers[i]
        if not buffer.home:
            states[str(buffer.device)] = states.get(str(buffer.device), 0) + buffer.type.nbytes
    rows: list[Row] = [
        (str(a.device), count_bytes(a.nbytes), count_bytes(states[str(a.device)]))
        for a in ranked[:DEVICES]
    ]
    rows += _more(len(ranked), DEVICES)
    yield Table("memory", ("device", "arena", "variables"), tuple(rows))
    if ranked and ranked[0].owners:
        yield _peak(ranked[0])


def _peak(arena: ArenaPlan) -> Table:
    rows: list[Row] = [
        (count_bytes(n), share(n, arena.lower_bound), shortened(name, NAME), _at(line))
        for n, name, line in arena.owners[:OWNERS]
    ]
    rows += _more(len(arena.owners), OWNERS)
    return Table(f"largest buffers of {arena.device} at its peak", (), tuple(rows))


def _at(line: str) -> str:
    return shortened(place(line).rpartition(" via ")[2], LINE)


def _transfers(plan: Plan) -> Iterator[Table]:
    moving = [e for e in by_cost(plan.ledger) if e.nbytes]
    total = sum(e.seconds for e in moving)
    shown = moving[:TRANSFERS]
    rows = tuple(
        (str(i), shortened(e.value, NAME), _way(e), count_bytes(e.nbytes), share(e.seconds, total),
         _at(e.line))
        for i, e in enumerate(shown, 1)
    )  # fmt: skip
    title = f"transfers: {len(moving):,} per step, {count_bytes(plan.bytes_per_step)}, "
    title += f"{duration(total)} predicted"
    columns = ("#", "most expensive", "by", "bytes", "share", "line") if rows else ()
    yield Table(title, columns, rows)
    others = [
        (str(i), text) for i, e in enumerate(shown, 1) for text in e.alternatives[:ALTERNATIVES]
    ]
    if others:
        yield Table("alternatives to them", (), tuple(others))


def by_cost(ledger: Iterable[Transfer]) -> list[Transfer]:
    """Sort transfers by predicted time, the most expensive first, and those without bytes last."""
    return sorted(ledger, key=lambda e: (not e.nbytes, -e.seconds, -e.nbytes))


def _way(entry: Transfer) -> str:
    """Return a text with the steps of a transfer and the SBPs before and after the transfer."""
    source, target = (text.partition("] ")[2] or text for text in (entry.source, entry.target))
    return f"{'+'.join(entry.steps)} {source} to {target}"
