"""The plan of a job as text: ops, placements, SBP, memory map, time per pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flow_core.frontend.compile import Compiled
from flow_core.frontend.function import JobFunction
from flow_core.ir import Op, Value
from flow_core.plan import ArenaPlan, Buffer, Plan
from flow_core.sbp import format_nd_sbp

Row = tuple[str, ...]


def plan_report(job: JobFunction) -> str:
    """The report of ``flow plan script.py:job``; compiles the job when needed."""
    compiled = job.compile()
    return "\n".join(_sections(job, compiled)) + "\n"


def _sections(job: JobFunction, compiled: Compiled) -> Iterator[str]:
    plan = compiled.plan
    yield f"{job.kind} job {job.name!r} at {job.line}"
    yield f"{len(compiled.logical)} ops traced, {len(plan.tasks)} tasks per step, " + (
        f"{len(plan.prologue)} run once"
    )
    yield from _section("ops", _ops(compiled))
    yield from _section("tasks", _tasks(plan))
    for arena in plan.arenas:
        yield from _section(f"memory of {arena.device}", _memory(plan, arena))
        yield from _section(f"live at the peak, task {arena.peak}", _owners(arena))
    if compiled.ledger:
        yield from _section("boxing", _boxing(compiled))
    yield from _section("registers", _registers(plan))
    yield from _section("compile time", _timings(compiled))


def _section(title: str, rows: Iterator[Row]) -> Iterator[str]:
    yield ""
    yield title
    table = list(rows)
    columns = max((len(row) for row in table), default=0)
    widths = [max(len(r[i]) for r in table if len(r) > i) for i in range(columns)]
    for row in table:
        yield "  " + "  ".join(t.ljust(w) for t, w in zip(row, widths, strict=False)).rstrip()


def _ops(compiled: Compiled) -> Iterator[Row]:
    graph = compiled.spread if compiled.layouts else compiled.graph
    yield ("name", "type", "outputs", "placement", "SBP", "line")
    for op in graph.ops.values():
        types = ", ".join(map(str, graph.types[op.name]))
        line = graph.lines.get(op.name)
        yield (op.name, _kind(op), types, str(op.placement), _sbp(compiled, op), str(line or ""))


def _kind(op: Op) -> str:
    if op.type != "fused":
        return op.type
    return f"fused({' '.join(dict.fromkeys(row[0] for row in op.attrs['body']))})"


def _sbp(compiled: Compiled, op: Op) -> str:
    if not compiled.layouts:
        return "B"
    count = len(compiled.spread.types[op.name])
    layouts = [compiled.layouts[Value(op.name, i)] for i in range(count)]
    return ", ".join(format_nd_sbp(layout.sbp) for layout in layouts)


def _tasks(plan: Plan) -> Iterator[Row]:
    yield ("#", "op", "kernel", "reads", "writes", "workspace")
    for i, task in enumerate(plan.tasks):
        size = 0 if task.workspace is None else plan.buffers[task.workspace].type.nbytes
        reads = " ".join(_place(plan.buffers[b]) for b in task.inputs)
        writes = " ".join(_place(plan.buffers[b]) for b in task.outputs)
        yield (str(i), task.op, task.kernel, reads, writes, _bytes(size) if size else "")


def _place(buffer: Buffer) -> str:
    return buffer.name if buffer.kind == "variable" else f"@{buffer.offset}"


def _memory(plan: Plan, arena: ArenaPlan) -> Iterator[Row]:
    ratio = arena.nbytes / arena.lower_bound if arena.lower_bound else 1.0
    yield ("arena", _bytes(arena.nbytes), f"{ratio:.3f} x the largest live set")
    yield ("largest live set", _bytes(arena.lower_bound))
    states = sum(plan.buffers[i].type.nbytes for i in plan.variables.values())
    yield ("variables", _bytes(states), "owned by the session")
    yield ("offset", "bytes", "tasks", "kind", "name")
    mine = [b for b in plan.buffers if b.device == arena.device and b.offset >= 0]
    for b in sorted(mine, key=lambda b: (b.offset, b.first)):
        yield (str(b.offset), str(b.type.nbytes), f"{b.first}-{b.last}", b.kind, b.name)


def _owners(arena: ArenaPlan) -> Iterator[Row]:
    for nbytes, name, line in arena.owners:
        yield (_bytes(nbytes), name, line)


def _registers(plan: Plan) -> Iterator[Row]:
    for r in plan.registers:
        slots = f"{r.slots} slots" + (f", {r.initial} filled" if r.initial else "")
        yield (r.name, f"{r.producer} -> {', '.join(r.consumers)}", slots)


def _boxing(compiled: Compiled) -> Iterator[Row]:
    yield ("value", "step", "from", "to", "bytes", "time", "line")
    for e in compiled.ledger:
        time = f"{e.seconds * 1e6:.1f} us"
        yield (e.value, e.hop, e.source, e.target, str(e.nbytes), time, e.line)
    yield ("all", "", "", "", str(sum(e.nbytes for e in compiled.ledger)))


def _timings(compiled: Compiled) -> Iterator[Row]:
    for t in compiled.timings:
        yield (t.name, f"{t.before} -> {t.after}", f"{t.seconds * 1e3:.2f} ms")


def _bytes(count: Any) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
