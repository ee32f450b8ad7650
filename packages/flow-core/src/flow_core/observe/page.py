"""A plan as one self-contained HTML page, which needs no network and no other file.

The page shows the graph, the ledger, the memory of each device over time, and the timeline of a
measured step.  The scripts in ``assets`` draw these on canvases, from data that the page contains.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flow_core.observe.document import PlanDocument
from flow_core.observe.layout import layout
from flow_core.observe.measure import NOT_MEASURED, Measured
from flow_core.observe.streams import flow_rows, stream_rows, threads
from flow_core.observe.summary.op_times import by_class, task_seconds
from flow_core.observe.summary.screen import by_cost
from flow_core.observe.tables import count_bytes, duration
from flow_core.observe.text import link_bytes
from flow_core.plan import Buffer, Plan, Transfer
from flow_core.sharding.topology import Device

ASSETS = Path(__file__).parent / "assets"

STYLE, SCRIPTS = "page.css", ("drawing.js", "graph.js", "charts.js", "page.js")
"""The files from which the page is built; the scripts are concatenated in this order."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The content security policy of the page, which allows it to load nothing."""


def page(doc: PlanDocument, measured: Measured = NOT_MEASURED) -> str:
    """Return the HTML text of the page for a plan."""
    title = f"{doc.kind} job {doc.job}"
    style, *parts = [(ASSETS / name).read_text(encoding="utf-8") for name in (STYLE, *SCRIPTS)]
    script = "\n".join(('"use strict";', "{", *parts, "}"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<script type="application/json" id="data">{embedded(page_data(doc, measured))}</script>
<script>
{script}
</script>
</body>
</html>
"""


def embedded(data: Any) -> str:
    r"""Encode data as JSON that is safe inside a script element.

    >>> embedded({"x": "</script>"})
    '{"x":"\\u003c/script>"}'
    """
    text = json.dumps(data, separators=(",", ":"))  # the result is ASCII only
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def page_data(doc: PlanDocument, measured: Measured = NOT_MEASURED) -> dict[str, Any]:
    """Return the page's data as lists of rows; the page's scripts define the columns."""
    numbers = {op.name: i for i, op in enumerate(doc.ops)}
    edges = list(_edges(doc, numbers))
    nodes = layout([op.name for op in doc.ops], [(a, b) for a, b, *_ in edges])
    placements = list(dict.fromkeys(op.placement for op in doc.ops))
    plan = doc.plan
    devices = [str(arena.device) for arena in plan.arenas]
    return {
        "title": f"{doc.kind} job {doc.job}",
        "line": doc.line,
        "facts": list(_facts(doc, measured)),
        "selection": [
            list(filter(None, row)) for row in (*doc.selection, *doc.hints, *zip(doc.notes))
        ],
        "placements": placements,
        "devices": devices,
        "nodes": [[n.label, n.op, n.parent, n.layer, n.order] for n in nodes],
        "ops": [
            [op.name, op.type, ", ".join(op.outputs), placements.index(op.placement),
             ", ".join(op.sbp), op.line]
            for op in doc.ops
        ],
        "edges": edges,
        "ledger": [_ledger_row(entry) for entry in by_cost(plan.ledger)],
        "links": list(link_bytes(plan.ledger).items()),
        "arenas": [
            [str(a.device), a.nbytes, a.lower_bound, list(_blocks(plan, a.device))]
            for a in plan.arenas
        ],
        "tasks": [
            [t.op, numbers.get(doc.origins.get(t.op, t.op), -1), t.kernel,
             plan.streams[t.stream] if plan.streams else str(t.device), t.line]
            for t in plan.tasks
        ],
        "streams": [list(row) for row in stream_rows(plan)],
        "flows": [list(row) for row in flow_rows(plan)],
        "threads": threads(plan),
        "spans": [
            [s.task, _tenths(s.start), _tenths(s.stop - s.start)] for s in measured.spans
        ],
        "times": [_tenths(seconds) for seconds in task_seconds(plan, measured.spans)],
        "steps": measured.steps,
        "classes": _classes(plan, measured),
    }  # fmt: skip


def _classes(plan: Plan, measured: Measured) -> list[list[Any]]:
    """Return a row [class, tasks, microseconds, share, op types] per class of ops."""
    found = by_class(plan, measured.spans)
    total = sum(c.seconds for c in found) or 1.0
    return [
        [c.name, c.tasks, _tenths(c.seconds), round(c.seconds / total, 4), ", ".join(c.types)]
        for c in found
    ]


def _tenths(seconds: float) -> float:
    """Convert seconds to microseconds, to a tenth."""
    return round(seconds * 1e6, 1)


def _facts(doc: PlanDocument, measured: Measured) -> Iterator[tuple[str, str]]:
    plan = doc.plan
    yield "ops", f"{len(doc.ops):,}"
    yield "tasks per step", f"{len(plan.tasks):,}"
    yield "devices", f"{len(plan.arenas)}"
    yield "across devices", f"{count_bytes(plan.bytes_per_step)} per step"
    yield "largest arena", count_bytes(max((a.nbytes for a in plan.arenas), default=0))
    if half := plan.settings.get("mixed_precision_data_type"):
        yield "mixed precision", str(half)
    if measured.steps:
        few = " (one step: not representative)" if measured.steps == 1 else ""
        yield "measured step", f"{duration(measured.seconds)}, median of {measured.steps}{few}"


def _edges(doc: PlanDocument, numbers: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    """Yield an edge (from op, to op, produced SBP, wanted SBP, boxing bytes) per op input.

    The number of bytes is -1 if the edge needs no boxing.
    """
    moved: dict[str, list[Transfer]] = {}
    for entry in doc.plan.ledger:
        moved.setdefault(entry.value, []).append(entry)
    for number, op in enumerate(doc.ops):
        for value, wanted in zip(op.inputs, op.wants, strict=True):
            producer = doc.ops[numbers[value.op]]
            have = producer.sbp[value.index]
            target = f"{op.placement} {wanted}"
            entries = moved.get(str(value), ())
            boxed = [e for e in entries if f"{producer.placement} {have}" != target]
            count = _bytes_towards(boxed, target) if boxed else -1
            yield numbers[value.op], number, have, wanted, count


def _bytes_towards(entries: Sequence[Transfer], target: str) -> int:
    """Return the number of bytes transferred by the reshard steps that produce a layout."""
    total = 0
    while step := next((e for e in entries if e.target == target), None):
        total += step.nbytes
        entries = [e for e in entries if e is not step]
        target = step.source
    return total


def _ledger_row(entry: Transfer) -> list[Any]:
    return [
        entry.value, ", ".join(entry.steps), entry.source, entry.target, entry.nbytes,
        entry.seconds * 1e6, entry.why, "\n".join(entry.alternatives), entry.line,
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- memory


def _blocks(plan: Plan, device: Device) -> Iterator[list[Any]]:
    """Yield [offset, bytes, first task, last task, kind, name, line] for each block of a device."""
    lines, uses = {task.op: task.line for task in plan.tasks}, _uses(plan)
    for members in _pieces(plan, device).values():
        buffers = [plan.buffers[i] for i in members]
        owner = max(buffers, key=lambda b: b.type.nbytes)
        first, last = _lifetime(plan, members, owner, uses)
        line = lines.get(owner.op, "")
        yield [owner.offset, owner.type.nbytes, first, last, owner.kind, owner.name, line]


def _pieces(plan: Plan, device: Device) -> dict[tuple[int, int, int], list[int]]:
    """Group the buffers that share memory; views have the lifetime and location of their base."""
    found: dict[tuple[int, int, int], list[int]] = {}
    mine = [
        (b.first, b.last, b.offset, -b.type.nbytes, i)
        for i, b in enumerate(plan.buffers)
        if b.memory == device and b.offset >= 0 and b.type.nbytes
    ]
    key, end = (-1, -1, -1), 0
    for first, last, offset, size, i in sorted(mine):
        if key[1:] != (first, last) or offset >= end:
            key, end = (offset, first, last), offset - size
        found.setdefault(key, []).append(i)
    return found


def _lifetime(
    plan: Plan, members: Sequence[int], owner: Buffer, uses: Mapping[int, list[int]]
) -> tuple[int, int]:
    """Return the first and the last task of a block's lifetime."""
    end = max(len(plan.tasks) - 1, 0)
    if owner.kind == "constant":
        return 0, end
    tasks = [i for m in members for i in uses.get(m, ())]
    fetched = any(m in plan.fetches for m in members)
    first = 0 if owner.kind == "feed" else min(tasks, default=0)
    return first, end if fetched else max(tasks, default=first)


def _uses(plan: Plan) -> Mapping[int, list[int]]:
    """Return the tasks that access each buffer."""
    found: dict[int, list[int]] = {}
    for i, task in enumerate(plan.tasks):
        extra = () if task.workspace is None else (task.workspace,)
        for buffer in (*task.inputs, *task.outputs, *extra):
            found.setdefault(buffer, []).append(i)
    return found
