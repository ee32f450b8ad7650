"""The report of a simulated step: tables, JSON, and a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flow_core.base.formats.trace_file import MICRO, Event, arrow_event, name_event, span_event
from flow_core.comm.exchange import BOXING
from flow_core.costs.clock import Lane, Step
from flow_core.observe.simulator.memory import Memory
from flow_core.observe.simulator.what_if import Case
from flow_core.observe.summary.screen import place
from flow_core.observe.tables import Row, Table, count_bytes, duration, share
from flow_core.runtime.trace import arrows, track_names

LANES, DEVICES, LINES = 8, 4, 8
"""The largest number of rows of each table."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated step, with its memory and the what-if table."""

    step: Step
    memory: Sequence[Memory]  # of each device
    cases: Sequence[Case]
    processes: int
    devices: int  # the number of devices of the job, of which the plan may have only some

    def tables(self) -> Iterator[Table]:
        """Yield the tables of the report."""
        plan = self.step.costs.plan
        measured = sum(map(self.step.costs.is_measured, plan.tasks))
        kernels = sum(task.type != BOXING for task in plan.tasks)
        text = f"job {plan.job!r} on {self.devices:,} devices: a step takes "
        text += f"{duration(self.step.seconds)} in the simulation"
        kept = len(plan.arenas)
        text += f", of {kept:,} devices that stand for all" if kept < self.devices else ""
        costs = f"costs: {self.step.costs.model}; {measured:,} of {kernels:,} kernels as measured, "
        costs += "the others and the exchanges as modeled"
        yield Table(f"{text}\n{costs}", (), ())
        yield self._lanes()
        yield self._path()
        yield self._memory()
        yield self._what_if()

    def _lanes(self) -> Table:
        total = self.step.seconds
        lanes = sorted(self.step.lanes, key=lambda lane: -lane.computing)
        rows = [_lane_row(lane, total) for lane in lanes[:LANES]]
        rows += [(f"and {len(lanes) - LANES:,} more",)] if len(lanes) > LANES else []
        columns = ("lane", "computes", "share", "exposed transfers", "share", "waits", "share")
        return Table("what the lanes do", columns, tuple(rows))

    def _path(self) -> Table:
        rows = [
            (duration(seconds), share(seconds, self.step.seconds), str(count), place(line), ops)
            for line, seconds, count, ops in critical_lines(self.step)[:LINES]
        ]
        title = f"critical path: {len(self.step.path):,} tasks, by line"
        return Table(title, ("time", "share", "tasks", "line", "op types"), tuple(rows))

    def _memory(self) -> Table:
        rows: list[Row] = []
        for memory in self.memory[:DEVICES]:
            at, live = memory.peak
            rows.append(
                (str(memory.device), count_bytes(memory.total), count_bytes(memory.variables),
                 count_bytes(memory.arena), count_bytes(live), duration(at))
            )  # fmt: skip
        columns = ("device", "in all", "variables", "arena", "in use at its peak", "at")
        return Table("memory", columns, tuple(rows))

    def _what_if(self) -> Table:
        rows = [("the plan", duration(self.step.seconds), "", "", "")]
        for case in self.cases:
            if case.seconds is None:
                rows.append((case.name, "", "", "", case.note))
                continue
            ratio = case.seconds / self.step.seconds
            each = ratio / case.samples
            rows.append(
                (case.name, duration(case.seconds), f"{ratio:.2f}", f"{each:.2f}", case.note)
            )
        columns = ("what if", "step", "times as long", "per sample", "")
        return Table("what if", columns, tuple(rows))

    def to_json(self) -> str:
        """Return the simulation as JSON: seconds, bytes, and the positions of tasks in the plan."""
        step, plan = self.step, self.step.costs.plan
        data = {
            "job": plan.job,
            "devices": self.devices,
            "processes": self.processes,
            "model": str(step.costs.model),
            "seconds": step.seconds,
            "measured_kernels": sum(map(step.costs.is_measured, plan.tasks)),
            "lanes": [
                {"name": lane.name, "computing": lane.computing, "exposed": lane.exposed,
                 "bubble": lane.bubble}
                for lane in step.lanes
            ],
            "critical_path": [
                {"line": line, "seconds": seconds, "tasks": count, "ops": ops}
                for line, seconds, count, ops in critical_lines(step)
            ],
            "memory": [
                {"device": str(m.device), "arena": m.arena, "variables": m.variables,
                 "live": [list(point) for point in m.live]}
                for m in self.memory
            ],
            "what_if": [
                {"name": c.name, "seconds": c.seconds, "samples": c.samples, "note": c.note}
                for c in self.cases
            ],
            "tasks": [
                {"op": task.op, "start": start, "end": end}
                for task, (start, end) in zip(plan.tasks, step.spans, strict=True)
            ],
        }  # fmt: skip
        return json.dumps(data)


def _lane_row(lane: Lane, total: float) -> Row:
    parts = (lane.computing, lane.exposed, lane.bubble)
    cells = [text for seconds in parts for text in (duration(seconds), share(seconds, total))]
    return (lane.name, *cells)


def critical_lines(step: Step) -> list[tuple[str, float, int, str]]:
    """Return (line, seconds, number of tasks, op types) of the critical path, the longest first."""
    tasks = step.costs.plan.tasks
    rows: dict[str, list[int]] = {}
    for i in step.path:
        rows.setdefault(tasks[i].line, []).append(i)
    found = []
    for line, items in rows.items():
        seconds = sum(step.spans[i][1] - step.spans[i][0] for i in items)
        types = ", ".join(list(dict.fromkeys(tasks[i].type for i in items))[:3])
        found.append((line or "no line", seconds, len(items), types))
    return sorted(found, key=lambda row: -row[1])


def trace_events(simulated: Simulated) -> Iterator[Event]:
    """Yield the events of a simulated step, as `flow run --trace` writes those of real steps."""
    step, plan = simulated.step, simulated.step.costs.plan
    names = track_names(plan)
    tracks = {name: i for i, name in enumerate(dict.fromkeys(names))}
    yield name_event("process_name", 0, 0, f"simulated step of {plan.job}")
    for name, track in tracks.items():
        yield name_event("thread_name", 0, track, name)
    critical = set(step.path)
    for i, (task, (start, end)) in enumerate(zip(plan.tasks, step.spans, strict=True)):
        args = {"type": task.type, "device": str(task.device), "critical": i in critical}
        args |= {"line": task.line} if task.line else {}
        at = round(start * MICRO, 3)
        yield span_event(task.op, 0, tracks[names[i]], at, end - start, args)
    for a, b in arrows(plan):
        for phase, i, inside in (("s", a, 0.9), ("f", b, 0.1)):
            start, end = step.spans[i]
            at = round((start + (end - start) * inside) * MICRO, 3)
            yield arrow_event(phase, f"{a}/{b}", 0, tracks[names[i]], at)
    for memory in simulated.memory:
        for at, nbytes in memory.live:
            yield {
                "ph": "C", "name": f"memory of {memory.device}", "pid": 0, "tid": 0,
                "ts": round(at * MICRO, 3), "args": {"bytes": nbytes},
            }  # fmt: skip
