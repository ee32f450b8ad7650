"""A plan as tables of ops, placements, SBP, the ledger, the memory map and the time per pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flow_core.frontend.job.function import AnyJob
from flow_core.observe.document import PlanDocument, document
from flow_core.observe.streams import (
    FLOW_COLUMNS,
    STREAM_COLUMNS,
    flow_rows,
    stream_rows,
    threads,
)
from flow_core.observe.tables import Row, Table, count_bytes, joined, micros
from flow_core.plan import ArenaPlan, Buffer, Plan, Transfer
from flow_core.sharding.topology import Device

MOST_PLACES = 12
"""The largest number of inputs or outputs of a task that the text shows."""


def plan_report(job: AnyJob) -> str:
    """Return the output of ``flow plan script.py:job``; compile the job if needed."""
    return joined(plan_tables(document(job))) + "\n"


def plan_tables(doc: PlanDocument) -> Iterator[Table]:
    """Yield the tables that ``flow plan`` prints."""
    plan = doc.plan
    counts = f"{doc.traced} ops traced, {len(plan.tasks)} tasks per step, "
    half = plan.settings.get("mixed_precision_data_type")
    counts += f"{len(plan.prologue)} run once"
    counts += f", {len(plan.derived)} when variables change" if plan.derived else ""
    counts += f", mixed precision in {half}" if half else ""
    yield Table(f"{doc.kind} job {doc.job!r} at {doc.line}\n{counts}", (), ())
    yield _table("ops", "name type outputs placement SBP line", _ops(doc))
    yield _table("tasks", "# op kernel reads writes workspace", _tasks(plan))
    if changes := tuple(_layout_changes(plan)):
        yield _table("changes of layout", "# op bytes reason", changes)
    if unrecordable := tuple(
        (str(i), t.op, t.kernel, t.unrecordable) for i, t in enumerate(plan.tasks) if t.unrecordable
    ):
        yield _table("launches outside of the recorded step", "# op kernel reason", unrecordable)
    for arena in plan.arenas:
        yield _table(f"memory of {arena.device}", "", _memory(plan, arena))
        yield _table(
            f"arena of {arena.device}", "offset bytes tasks kind name", _blocks(plan, arena)
        )
        yield _table(f"live at the peak, task {arena.peak}", "", _owners(arena))
    if doc.selection:
        yield _table("choice of SBP", "", doc.selection)
    if doc.hints:
        yield _table("if a hint were dropped", "", doc.hints)
    if doc.notes:
        rows = [(text,) for text in doc.notes]
        yield _table("model parallel without a hint", "", rows)
    yield from ledger_tables(plan.ledger)
    yield from _streams(plan)
    if plan.cores.budget:
        yield _table("cores", "", plan.cores.rows())
    yield _table("registers", "", _registers(plan))
    yield _table("passes and stages", "name stage ops changes options ms order", _passes(doc))


def _table(title: str, columns: str, rows: Iterable[Row]) -> Table:
    return Table(title, tuple(columns.split()), tuple(rows))


def _ops(doc: PlanDocument) -> Iterator[Row]:
    for op in doc.ops:
        yield (op.name, op.type, ", ".join(op.outputs), op.placement, ", ".join(op.sbp), op.line)


def _tasks(plan: Plan) -> Iterator[Row]:
    for i, task in enumerate(plan.tasks):
        size = 0 if task.workspace is None else plan.buffers[task.workspace].type.nbytes
        reads, writes = (_places(plan, side) for side in (task.inputs, task.outputs))
        yield (str(i), task.op, task.kernel, reads, writes, count_bytes(size) if size else "")


def _layout_changes(plan: Plan) -> Iterator[Row]:
    """Yield table rows for the tasks that copy tensors into another memory layout at each step.

    The rows include kernels that allocate memory outside of the plan.
    """
    for i, task in enumerate(plan.tasks):
        count, memory = (task.attrs.get(k) for k in ("reordered", "memory"))
        if count or memory:
            why = "; ".join(str(x) for x in (task.attrs.get("reason"), memory) if x)
            yield (str(i), task.op, f"{count:,}" if isinstance(count, int) else "", why)


def _places(plan: Plan, buffers: Sequence[int]) -> str:
    """Format the memory locations that a task reads or writes; shorten long lists."""
    shown = [_place(plan.buffers[b]) for b in buffers[:MOST_PLACES]]
    more = len(buffers) - len(shown)
    return " ".join([*shown, f"and {more} more"] if more else shown)


def _place(buffer: Buffer) -> str:
    place = buffer.name if buffer.kind == "variable" else f"@{buffer.offset}"
    return f"{place} of {buffer.home}" if buffer.home else place


def _memory(plan: Plan, arena: ArenaPlan) -> Iterator[Row]:
    ratio = arena.nbytes / arena.lower_bound if arena.lower_bound else 1.0
    yield ("arena", count_bytes(arena.nbytes), f"{ratio:.3f} x the largest live set")
    yield ("largest live set", count_bytes(arena.lower_bound), "")
    mine = [plan.buffers[i] for i in plan.variables.values()]
    states = sum(b.type.nbytes for b in mine if b.device == arena.device and not b.home)
    yield ("variables", count_bytes(states), "owned by the session")
    for home, nbytes in sorted(_elsewhere(plan, arena).items()):
        yield (
            f"shared, in the memory of {home}",
            count_bytes(nbytes),
            "the same on both, or side by side",
        )


def _blocks(plan: Plan, arena: ArenaPlan) -> Iterator[Row]:
    mine = [b for b in plan.buffers if b.memory == arena.device and b.offset >= 0]
    for b in sorted(mine, key=lambda b: (b.offset, b.first)):
        yield (str(b.offset), str(b.type.nbytes), f"{b.first}-{b.last}", b.kind, b.name)


def _elsewhere(plan: Plan, arena: ArenaPlan) -> Mapping[Device, int]:
    """Return, for each other device, how many bytes of its memory the arena's device uses."""
    seen = {
        (b.home, b.offset, b.first, b.name if b.kind == "variable" else ""): b.type.nbytes
        for b in plan.buffers
        if b.home and b.device == arena.device
    }
    found: dict[Device, int] = {}
    for (home, *_), nbytes in seen.items():
        found[home] = found.get(home, 0) + nbytes
    return found


def _owners(arena: ArenaPlan) -> Iterator[Row]:
    for nbytes, name, line in arena.owners:
        yield (count_bytes(nbytes), name, line)


def ledger_tables(ledger: Iterable[Transfer]) -> Iterator[Table]:
    """Yield tables of the transfers between devices, with their reasons, links and alternatives."""
    entries = tuple(ledger)
    if not entries:
        return
    total = sum(e.nbytes for e in entries)
    yield _table(
        f"boxing: {total:,} bytes cross devices per step",
        "# value steps from to bytes time line",
        _boxing(entries),
    )
    for title, rows in (
        ("why", [(str(i), e.why) for i, e in enumerate(entries) if e.why]),
        ("instead", [(str(i), other) for i, e in enumerate(entries) for other in e.alternatives]),
        ("bytes per link", [(link, f"{n:,}") for link, n in link_bytes(entries).items()]),
    ):
        if rows:
            yield _table(f"boxing: {title}", "", rows)


def _boxing(ledger: Iterable[Transfer]) -> Iterator[Row]:
    for i, e in enumerate(ledger):
        steps = ", ".join(e.steps)
        yield (
            str(i), e.value, steps, e.source, e.target, f"{e.nbytes:,}", micros(e.seconds), e.line
        )  # fmt: skip


def link_bytes(ledger: Iterable[Transfer]) -> Mapping[str, int]:
    """Return the number of bytes that cross each link in a step.

    >>> entry = Transfer("x:0", ("copy",), "a", "b", 4, 0.0, links={"gpu:0:0->gpu:0:1": 4})
    >>> link_bytes([entry, entry])
    {'gpu:0:0->gpu:0:1': 8}
    """
    found: dict[str, int] = {}
    for entry in ledger:
        for link, count in entry.links.items():
            found[link] = found.get(link, 0) + count
    return dict(sorted(found.items()))


def _streams(plan: Plan) -> Iterator[Table]:
    """Yield tables of the streams and of the registers between streams."""
    if plan.streams:
        rows = tuple(tuple(map(str, row)) for row in stream_rows(plan))
        yield Table(f"streams: {len(rows)}, {threads(plan)}", STREAM_COLUMNS, rows)
    if plan.flows:
        rows = tuple(tuple(map(str, row)) for row in flow_rows(plan))
        yield Table("between streams", FLOW_COLUMNS, rows)


def _registers(plan: Plan) -> Iterator[Row]:
    for r in plan.registers:
        slots = f"{r.slots} slots" + (f", {r.initial} filled" if r.initial else "")
        yield (r.name, f"{r.producer} -> {', '.join(r.consumers)}", slots)


def _passes(doc: PlanDocument) -> Iterator[Row]:
    for t in doc.passes:
        ran = "idle" not in t.stage
        ops, took = (f"{t.before} -> {t.after}", f"{t.seconds * 1e3:.2f}") if ran else ("", "")
        lists = (", ".join(row) for row in (t.changes, t.options, t.order))
        changes, options, order = lists
        yield (t.name, t.stage, ops, changes, options, took, order)
