"""What the processes of a program do together outside of steps: the same plan, one checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import CheckpointError, JobError
from flow_core.compiler.select import SELECTORS, NdSignature, Problem, Selection, Selector
from flow_core.compiler.select.costs import Costs
from flow_core.compiler.select.report import Report
from flow_core.device import World
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.job.compile import Compiled, stages
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Graph
from flow_core.ir.text import print_graph, print_op
from flow_core.plan import Plan, Task
from flow_core.sharding.sbp import format_nd_sbp, parse_nd_sbp

START = "start"
"""What comes before the first pass, where stages are compared."""


class SameSelection:
    """Selects signatures as the first process does, in one meeting: for one compilation.

    A search may end elsewhere in a process that has other settings, or no integer programs.
    """

    def __init__(self, world: World, build: JobBuild) -> None:
        self._world = world
        self._selector = SELECTORS[str(build.config.get("sbp_selector"))]
        self._what = f"choosing how the values of job {build.name!r} lie on devices"
        self._met = False

    def __call__(self, problem: Problem) -> Selection:
        """The first process's selection, if that is one of these ops."""
        if self._world.rank:
            return _selection(problem, self._meet({})) or self._selector(problem)
        try:
            selection = self._selector(problem)
        except BaseException:
            self._meet({})
            raise
        self._meet(selection.signatures)
        return selection

    def settle(self, signatures: Mapping[str, NdSignature]) -> None:
        """Meets the others where nothing had to be chosen: on one device, or once more."""
        if not self._met:
            self._meet({} if self._world.rank else signatures)

    def _meet(self, signatures: Mapping[str, NdSignature]) -> Any:
        self._met = True
        texts = {
            name: [list(map(format_nd_sbp, side)) for side in (chosen.inputs, chosen.outputs)]
            for name, chosen in signatures.items()
        }
        return json.loads(self._world.gather(json.dumps(texts).encode(), self._what)[0])


def compile_collectively(
    session: Any, variant: Any, compiled: Callable[[Any, Selector | None], Compiled]
) -> Compiled:
    """The compilation of a job, the same in all processes.

    Args:
        session: the session.
        variant: the traced job; it may have been compiled before, in some processes.
        compiled: compiles it with a selector, None for the job's own.

    Raises:
        JobError: the plans differ; see `check_same_plan`.
    """
    world: World | None = session.world
    if world is None:
        return compiled(variant, None)
    select = SameSelection(world, variant.traced.build)
    found = compiled(variant, select)
    select.settle(found.physical.signatures)
    check_same_plan(world, variant.traced.build, found)
    return found


def _selection(problem: Problem, texts: Mapping[str, Any]) -> Selection | None:
    """The selection that another process tells of; None where its ops are others."""
    if texts.keys() != problem.graph.ops.keys():
        return None
    selection = Selection()
    for name, op in problem.graph.ops.items():
        sides = [tuple(map(parse_nd_sbp, side)) for side in texts[name]]
        selection.take(problem, op, NdSignature(*sides))
    cost = Costs(problem).evaluate(selection)
    selection.report = Report("rank 0", "in the first process", cost, None, None, 0.0)
    return selection


def check_same_plan(world: World, build: JobBuild, compiled: Compiled) -> None:
    """Holds the plans of all processes against each other, before anybody runs one.

    Raises:
        JobError: they differ: in all processes, with the first pass and op after which they do.
    """
    what = f"comparing the plans of job {build.name!r}"
    lines = chain(
        _start_lines(build), _variable_lines(compiled.logical), _plan_lines(compiled.plan)
    )
    if len(set(world.gather(_digest(lines), what))) > 1:
        raise _difference(world, build, compiled, what)


def _digest(lines: Iterable[str]) -> bytes:
    return hashlib.sha256("\n".join(lines).encode()).digest()


def _start_lines(build: JobBuild) -> Iterator[str]:
    """What must be alike before there is any graph."""
    yield f"job {build.name!r}"
    yield f"check_feeds: {feeds_checked(build.session, build.config)}"
    yield f"machines of the program: {build.session.resources.machine_num}"


def feeds_checked(session: Any, config: FunctionConfig) -> str:
    """How often the processes compare what they feed a job: as the job says, or the session."""
    return str(config.get("check_feeds") or session.settings.check_feeds)


def _variable_lines(graph: Graph) -> Iterator[str]:
    """How variables begin, which no plan says: replicas are filled by each process for itself."""
    for op in graph.ops.values():
        if op.type == "variable":
            yield print_op(graph, op)


def _plan_lines(plan: Plan) -> Iterator[str]:
    """What must be alike: not kernels and threads, which are each process's own business."""
    for buffer in plan.buffers:
        if buffer.kind != "workspace":
            yield f"{buffer.name} : {buffer.kind} {buffer.type} @{buffer.device}"
    names = [buffer.name for buffer in plan.buffers]
    for task in (*plan.prologue, *plan.tasks):
        yield _task_line(task, names)
    yield f"fed {[names[i] for i in plan.feeds]} {plan.fed}"
    yield f"fetched {[names[i] for i in plan.fetches]}"


def _task_line(task: Task, names: list[str]) -> str:
    ends = [[names[i] for i in found] for found in (task.inputs, task.outputs)]
    return f"{task.op} = {task.type} {ends} @{task.device} {task.seed} {dict(task.attrs)}"


def _difference(world: World, build: JobBuild, compiled: Compiled, what: str) -> JobError:
    """The error for plans that differ: every process finds the same."""
    texts = {START: list(_start_lines(build))}
    texts |= {name: print_graph(graph).splitlines() for name, graph in stages(build, compiled)}
    texts["lower"] = list(_plan_lines(compiled.plan))
    digests = [[name, _digest(lines).hex()] for name, lines in texts.items()]
    found = [json.loads(text) for text in world.gather(json.dumps(digests).encode(), what)]
    stage, other = _first_difference(found)
    told = world.gather(json.dumps(texts.get(stage, [])).encode(), what)
    mine, theirs = (json.loads(told[rank]) for rank in (0, other))
    for here, there in zip_longest(mine, theirs, fillvalue="nothing"):
        if here != there:
            break
    else:
        here = there = "the same ops"
    return JobError(
        what,
        at=build.builder.lines.get(here.partition(" ")[0]),
        found=f"{_when(stage, found[0], found[other])}, rank 0 has\n    {here:.200}\n  and rank "
        f"{other} has\n    {there:.200}",
        allowed="the same plan in all processes",
        hint="let nothing in a job function depend on the process, on time or on unseeded chance; "
        "on hosts with different processors, limit all to what the oldest has (ONEDNN_MAX_CPU_ISA)",
    )


def _when(stage: str, ours: list[list[str]], theirs: list[list[str]]) -> str:
    """The stage in words, and a pass that only one of two processes runs."""
    if stage == START:
        return "before the first pass"
    lists = [[name for name, _ in rows] for rows in (ours, theirs)]
    odd = [name for name in (*lists[0], *lists[1]) if (name in lists[0]) != (name in lists[1])]
    alone = f" (pass {odd[0]!r} runs in one of the two only)" if odd else ""
    return f"after pass {stage!r}{alone}"


def _first_difference(found: list[list[list[str]]]) -> tuple[str, int]:
    """The first stage in which a process differs from the first one, and that process."""
    longest = max(map(len, found))
    for index in range(longest):
        rows = [stages_of[index] if index < len(stages_of) else ["", ""] for stages_of in found]
        for rank, row in enumerate(rows):
            if row != rows[0]:
                return rows[0][0] or row[0], rank
    return "lower", 1


# ------------------------------------------------------------------------------- checkpoints


def save_collectively(
    world: World, variables: Mapping[str, Any], save: Callable[[Mapping[str, Any]], None]
) -> None:
    """Writes a checkpoint once, in the first process, to which the others give their parts.

    Args:
        world: the processes.
        variables: arrays, made when one is asked for, for which all processes meet.
        save: writes a mapping of arrays, in whatever order.

    Raises:
        CheckpointError: it failed, or processes save other names; in all processes.
    """
    _check_names(world, variables)
    if world.rank:
        _serve(world, variables)
        return
    try:
        save(_Asked(world, variables))
    except BaseException as error:
        _say(world, {"error": f"{error}"})
        raise
    _say(world, {})


def _check_names(world: World, variables: Mapping[str, Any]) -> None:
    own = json.dumps(sorted(variables)).encode()
    first, *others = (json.loads(text) for text in world.gather(own, "names in a checkpoint"))
    for rank, names in enumerate(others, 1):
        if names != first:
            odd = min(set(names) ^ set(first))
            raise CheckpointError(
                "saving variables",
                found=f"{odd!r} in process {0 if odd in first else rank} and not in "
                f"{rank if odd in first else 0}",
                allowed="the same names in all processes",
            )


def _serve(world: World, variables: Mapping[str, Any]) -> None:
    """Gives what the first process asks for, until it has all."""
    while "name" in (word := _say(world, {})):
        _ = variables[word["name"]]
    if "error" in word:
        raise CheckpointError("saving, in the first process", found=word["error"])


def _say(world: World, word: Mapping[str, Any]) -> Any:
    """What the first process says."""
    return json.loads(world.gather(json.dumps(word).encode(), "a checkpoint")[0])


class _Asked(Mapping[str, Any]):
    """The arrays of variables, each put together when it is asked for."""

    def __init__(self, world: World, variables: Mapping[str, Any]) -> None:
        self._world = world
        self._variables = variables

    def __getitem__(self, name: str) -> Any:
        _say(self._world, {"name": name})
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def in_the_first(world: World, action: Callable[[], None], attempted: str) -> None:
    """Does something in the first process, for which the others wait.

    Raises:
        JobError: it failed; in the first process what it raised.
    """
    if world.rank:
        word = _say(world, {})
        if "error" in word:
            raise JobError(f"{attempted}, in the first process", found=word["error"])
        return
    try:
        action()
    except BaseException as error:
        _say(world, {"error": f"{error}"})
        raise
    _say(world, {})


def load_collectively(world: World, load: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Reads a checkpoint once, in the first process, which gives all arrays to the others.

    Raises:
        CheckpointError: it failed; in all processes.
    """
    if world.rank:
        word = _say(world, {})
        if "error" in word:
            raise CheckpointError("loading, in the first process", found=word["error"])
        found = {n: np.empty(shape, as_dtype(dtype).numpy) for n, shape, dtype in word["arrays"]}
    else:
        found = _loaded(world, load)
    for name, array in found.items():
        world.broadcast(array, 0, f"variable {name!r}")
    return found


def _loaded(world: World, load: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    try:
        found = {name: np.asarray(array, order="C") for name, array in load().items()}
        rows = [[name, list(x.shape), as_dtype(x.dtype).name] for name, x in found.items()]
    except BaseException as error:
        _say(world, {"error": f"{error}"})
        raise
    _say(world, {"arrays": rows})
    return found
