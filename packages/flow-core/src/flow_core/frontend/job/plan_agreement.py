"""Agreement of several processes on a job: all use one SBP selection and must have equal plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from flow_core.base.errors import JobError
from flow_core.comm.exchange import BOXING, devices_of_task
from flow_core.compiler.pass_list import stages
from flow_core.compiler.request import Compiled
from flow_core.compiler.select import SELECTORS, NdSignature, Problem, Selection
from flow_core.compiler.select.costs import Costs
from flow_core.compiler.select.grids import Hierarchy, on_grid
from flow_core.compiler.select.report import Report
from flow_core.device import World
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.job_session import JobSession
from flow_core.ir.graph import Graph
from flow_core.ir.text import print_graph, print_op
from flow_core.plan import Plan, Task
from flow_core.sharding.sbp import format_nd_sbp, parse_nd_sbp
from flow_core.sharding.topology import Device

START = "start"
"""The name of the stage before the first pass."""


class SharedSelection:
    """A selector that broadcasts the SBP selection of rank 0, once per compilation.

    If each process searched on its own, a process with other settings, or without an
    integer-programming library, might find another selection.
    """

    def __init__(self, world: World, job: str, selector: str) -> None:
        self._world = world
        self._selector = SELECTORS[selector]
        self._what = f"selecting the SBP signatures of job {job!r}"
        self._exchanged = False

    def __call__(self, problem: Problem) -> Selection:
        """Return the selection of rank 0, or this process's own if rank 0 has other ops."""
        if self._world.rank:
            return _selection(problem, self._broadcast({})) or self._selector(problem)
        try:
            selection = self._selector(problem)
        except BaseException:
            self._broadcast({})
            raise
        self._broadcast(selection.signatures, selection.hierarchy)
        return selection

    def finish(self, signatures: Mapping[str, NdSignature]) -> None:
        """Take part in the broadcast if compilation did not: on one device, or if cached."""
        if not self._exchanged:
            self._broadcast({} if self._world.rank else signatures)

    def _broadcast(
        self, signatures: Mapping[str, NdSignature], hierarchy: Hierarchy | None = None
    ) -> Any:
        self._exchanged = True
        texts = {
            name: [list(map(format_nd_sbp, side)) for side in (chosen.inputs, chosen.outputs)]
            for name, chosen in signatures.items()
        }
        text = json.dumps({"hierarchy": hierarchy, "signatures": texts})
        return json.loads(self._world.gather(text.encode(), self._what)[0])


def _selection(problem: Problem, told: Mapping[str, Any]) -> Selection | None:
    """Return the selection of another process; None if that process has other ops."""
    texts, hierarchy = told["signatures"], told["hierarchy"]
    if texts.keys() != problem.graph.ops.keys():
        return None
    selection = Selection(hierarchy=None if hierarchy is None else tuple(hierarchy))
    problem = on_grid(problem, selection.hierarchy)
    for name, op in problem.graph.ops.items():
        sides = [tuple(map(parse_nd_sbp, side)) for side in texts[name]]
        selection.take(problem, op, NdSignature(*sides))
    cost = Costs(problem).evaluate(selection)
    selection.report = Report("rank 0", "on rank 0", cost, None, None, 0.0)
    return selection


def check_same_plan(world: World, build: JobBuild, compiled: Compiled) -> None:
    """Compare the plans of all processes before the first step.

    Raises:
        JobError: the plans differ; raised in all processes, with the first differing pass and op.
    """
    what = f"comparing the plans of job {build.name!r}"
    if len(set(world.gather(_digest(_job_lines(build, compiled)), what))) > 1:
        raise _difference(world, build, compiled, what)


def is_kept_by_all(world: World, build: JobBuild, kept: Compiled | None) -> bool:
    """Return whether all processes have found equal plans on disk; all return the same.

    Args:
        kept: the job with the plan that this process has found; None if it has found none.
    """
    mine = b"" if kept is None else _digest(_job_lines(build, kept))
    gathered = world.gather(mine, f"comparing the kept plans of job {build.name!r}")
    return kept is not None and set(gathered) == {mine}


def _job_lines(build: JobBuild, compiled: Compiled) -> Iterator[str]:
    """Yield text lines about a compiled job that must be equal in all processes."""
    yield from _start_lines(build)
    yield from _variable_lines(compiled.logical)
    yield from _plan_lines(compiled.plan)


def _digest(lines: Iterable[str]) -> bytes:
    return hashlib.sha256("\n".join(lines).encode()).digest()


def _start_lines(build: JobBuild) -> Iterator[str]:
    """Yield text lines about a job that must be equal in all processes before tracing."""
    yield f"job {build.name!r}"
    yield f"check_feeds: {feed_check_policy(build.session, build.config)}"
    yield f"machines of the program: {build.session.resources.machine_num}"


def feed_check_policy(session: JobSession, config: FunctionConfig) -> str:
    """Return how often processes compare feeds, set for the job or else for the session."""
    return str(config.get("check_feeds") or session.settings.check_feeds)


def _variable_lines(graph: Graph) -> Iterator[str]:
    """Yield text lines about initializers, which are not in plans: processes fill own replicas."""
    for op in graph.ops.values():
        if op.type == "variable":
            yield print_op(graph, op)


def _plan_lines(plan: Plan) -> Iterator[str]:
    """Yield lines for the parts of a plan that must be equal; kernels and threads may differ.

    Of plans of some devices, these are the tasks of the first device of each class, which all
    processes have, and the ledger, from which the exchanges of other devices follow.
    """
    devices = map(Device.parse, plan.classes) if plan.classes else [b.device for b in plan.buffers]
    common = {*devices, *(task.device for task in plan.tasks if not plan.classes)}
    yield f"classes {dict(plan.classes)}"
    for buffer in plan.buffers:
        if buffer.kind != "workspace" and buffer.device in common:
            yield f"{buffer.name} : {buffer.kind} {buffer.type} @{buffer.device}"
    names = [buffer.name for buffer in plan.buffers]
    for task in (*plan.prologue, *plan.derived, *plan.tasks):
        if task.type == BOXING and task.attrs.get("whole"):
            if devices_of_task(task, plan.buffers) & common:
                yield f"{task.op} = {task.kernel} {task.attrs['whole']} {task.attrs['members']}"
        elif task.device in common:
            yield _task_line(task, names)
    rows = [(i, fed) for i, fed in zip(plan.feeds, plan.fed, strict=True)]
    yield f"fed {[(names[i], fed) for i, fed in rows if plan.buffers[i].device in common]}"
    yield f"fetched {[names[i] for i in plan.fetches]}"
    for entry in plan.ledger if plan.classes else ():
        yield f"{entry.value} {entry.steps} {entry.source} {entry.target}"


def _task_line(task: Task, names: list[str]) -> str:
    ends = [[names[i] for i in found] for found in (task.inputs, task.outputs)]
    return f"{task.op} = {task.type} {ends} @{task.device} {task.seed} {dict(task.attrs)}"


def _difference(world: World, build: JobBuild, compiled: Compiled, what: str) -> JobError:
    """Return the error for plans that differ; it is the same in every process."""
    texts = {START: list(_start_lines(build))}
    for name, graph in stages(compiled):
        if name == "to_physical" and compiled.plan.classes:
            break  # the graphs of other devices differ
        texts[name] = print_graph(graph).splitlines()
    texts["lower"] = list(_plan_lines(compiled.plan))
    digests = [[name, _digest(lines).hex()] for name, lines in texts.items()]
    found = [json.loads(text) for text in world.gather(json.dumps(digests).encode(), what)]
    stage, other = _first_difference(found)
    gathered = world.gather(json.dumps(texts.get(stage, [])).encode(), what)
    ours, theirs = (json.loads(gathered[rank]) for rank in (0, other))
    for our, their in zip_longest(ours, theirs, fillvalue="nothing"):
        if our != their:
            break
    else:
        our = their = "the same ops"
    return JobError(
        what,
        at=build.builder.lines.get(our.partition(" ")[0]),
        found=f"{_when(stage, found[0], found[other])}, rank 0 has\n    {our:.200}\n  and rank "
        f"{other} has\n    {their:.200}",
        allowed="the same plan in all processes",
        hint="make the job function independent of the rank, the time and unseeded random numbers; "
        "on hosts with different processors, limit all to the oldest instruction set "
        "(ONEDNN_MAX_CPU_ISA)",
    )


def _when(stage: str, ours: list[list[str]], theirs: list[list[str]]) -> str:
    """Return text that names the stage, and a pass that only one of two processes runs."""
    if stage == START:
        return "before the first pass"
    lists = [[name for name, _ in rows] for rows in (ours, theirs)]
    odd = [name for name in (*lists[0], *lists[1]) if (name in lists[0]) != (name in lists[1])]
    only_one = f" (pass {odd[0]!r} runs in one of the two only)" if odd else ""
    return f"after pass {stage!r}{only_one}"


def _first_difference(found: list[list[list[str]]]) -> tuple[str, int]:
    """Return the first stage in which a process differs from rank 0, and that process's rank."""
    longest = max(map(len, found))
    for index in range(longest):
        rows = [stages_of[index] if index < len(stages_of) else ["", ""] for stages_of in found]
        for rank, row in enumerate(rows):
            if row != rows[0]:
                return rows[0][0] or row[0], rank
    return "lower", 1
