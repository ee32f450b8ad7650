"""Proof that a step of a plan ends: no tasks, and no actors, wait for each other in a circle.

A task waits for the previous task of its stream and for the tasks in its ``waits``, which also
keep a task from overwriting memory that others still read.  An exchange ends when all processes
whose devices take part in it have come to it, and a process comes to the exchanges that it has with
others in the order of the plan.  So an exchange also waits for the previous one of each of its
processes.  If the union of these waits has no circle, the tasks of all processes can be put in an
order in which each one finds its waits fulfilled: the step ends, for any number of threads.

Actors wait for filled slots of the registers that they read, and for free slots of those that they
fill.  Such a marked graph (Commoner et al., 1971) never blocks if and only if every circle of waits
holds a token: a slot that is filled or free at the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.errors import PlanError
from flow_core.comm.exchange import BOXING, devices_of_task
from flow_core.plan import Plan, RegisterPlan
from flow_core.sharding.topology import Device

Owner = Callable[[Device], int]
"""A function that returns the rank of the process that owns a device."""

ORDER, EVENT, EXCHANGE = "order", "event", "exchange"


@dataclass(frozen=True, slots=True)
class Link:
    """A wait of a circle."""

    waiting: str  # the task or actor that waits
    line: str  # the source line of the task, empty if unknown
    waits_for: str  # the task or actor for which it waits: the next one of the circle
    why: str  # the reason


class CircularWaitError(PlanError):
    """Tasks or actors of a plan wait for each other; `circle` has the waits."""

    circle: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """A task's wait for another one."""

    task: int  # the position of the other task
    # `ORDER` (of the stream), `EVENT` (a wait of the plan) or `EXCHANGE` (the order of the
    # exchanges of processes).
    kind: str
    ranks: frozenset[int] = frozenset()  # the processes; only for `EXCHANGE`


def check_liveness(plan: Plan, owner: Owner | None = None) -> Counter[str]:
    """Prove that a step ends.

    Args:
        owner: the processes that run the plan together; None for a single process.

    Returns:
        The number of waits by kind.

    Raises:
        CircularWaitError: tasks or actors wait for each other; the error describes the circle.
    """
    check_registers(plan.registers)
    count = Counter[str]()
    is_ordered = True
    waits: list[list[Wait]] = []
    for position, found in enumerate(_waits(plan, owner)):
        waits.append(found)
        for wait in found:
            if not 0 <= wait.task < len(plan.tasks):
                raise PlanError(
                    f"checking task {position} {plan.tasks[position].op!r}",
                    found=f"waits {plan.tasks[position].waits}",
                    allowed=f"positions of the {len(plan.tasks)} tasks of the plan",
                )
            count[wait.kind] += max(1, len(wait.ranks))
            is_ordered = is_ordered and wait.task < position
    if not is_ordered:  # otherwise, the plan is in an order that proves it
        circle = _circle([[wait.task for wait in found] for found in waits])
        if circle:
            raise _circular(plan, circle, waits)
    return count


def _waits(plan: Plan, owner: Owner | None) -> Iterator[list[Wait]]:
    last_of_stream: dict[int, int] = {}
    last: dict[frozenset[int], int] = {}  # the last exchange of processes, each in one key
    known: dict[frozenset[Device], frozenset[int]] = {}
    for position, task in enumerate(plan.tasks):
        found = [Wait(other, EVENT) for other in task.waits]
        if task.stream in last_of_stream:
            found.append(Wait(last_of_stream[task.stream], ORDER))
        last_of_stream[task.stream] = position
        if owner is not None and task.type == BOXING:
            devices = devices_of_task(task, plan.buffers)
            ranks = known.get(devices)
            if ranks is None:
                ranks = known[devices] = frozenset(map(owner, devices))
            if len(ranks) > 1:
                found += _exchanged(last, ranks, position)
        yield found


def _exchanged(
    last: dict[frozenset[int], int], ranks: frozenset[int], position: int
) -> Iterator[Wait]:
    """Yield the waits of an exchange for the previous ones of its processes, and note it."""
    if ranks in last:
        yield Wait(last[ranks], EXCHANGE, ranks)
    else:
        for others, before in list(last.items()):
            common = others & ranks
            if common:
                yield Wait(before, EXCHANGE, common)
                del last[others]
                if others - ranks:
                    last[others - ranks] = before
    last[ranks] = position


def _circle(waits: Sequence[Sequence[int]]) -> list[int]:
    """Return nodes each of which waits for the next one, and the last one for the first.

    Return an empty list if there are none.  The search is depth-first, without recursion.
    """
    done: set[int] = set()
    for start in range(len(waits)):
        path, position = [start], {start: 0}
        stack = [iter(waits[start])]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                last = path.pop()
                del position[last]
                done.add(last)
            elif node in position:
                return path[position[node] :]
            elif node not in done:
                position[node] = len(path)
                path.append(node)
                stack.append(iter(waits[node]))
    return []


def _circular(
    plan: Plan, circle: Sequence[int], waits: Sequence[Sequence[Wait]]
) -> CircularWaitError:
    """Return the error that describes a circle of tasks."""
    lines, links = [], []
    for i, position in enumerate(circle):
        following = circle[(i + 1) % len(circle)]
        wait = next(wait for wait in waits[position] if wait.task == following)
        task, other, why = (
            plan.tasks[position],
            plan.tasks[following],
            _reason(plan, position, wait),
        )
        lines.append(f"{_named(plan, position)} waits for {_named(plan, following)}: {why}")
        links.append(Link(task.op, str(task.line or ""), other.op, why))
    error = CircularWaitError(
        f"checking that the tasks of job {plan.job!r} do not wait for each other",
        found="a circle:" + "".join(f"\n    {line}" for line in lines),
        allowed="tasks without a circle of waits",
        hint="the order of the plan is not that of its waits; if no pass of a plugin has changed "
        "it, report this with the output of flow plan --json",
    )
    error.circle = tuple(links)
    return error


def _named(plan: Plan, position: int) -> str:
    task = plan.tasks[position]
    return f"{task.type} {task.op!r}" + (f" at {task.line}" if task.line else "")


def _reason(plan: Plan, position: int, wait: Wait) -> str:
    if wait.kind == ORDER:
        stream = plan.tasks[position].stream
        name = plan.streams[stream] if stream < len(plan.streams) else str(stream)
        return f"it is next on stream {name!r}"
    if wait.kind == EXCHANGE:
        return f"it is the next exchange of rank {min(wait.ranks)}"
    return "it needs its result, or its memory"


def check_registers(registers: Iterable[RegisterPlan]) -> None:
    """Prove that actors never block.

    Raises `CircularWaitError` if actors wait for each other; the error describes the circle.
    """
    reasons: dict[str, dict[str, str]] = {}
    for r in registers:
        for consumer in r.consumers:
            if r.initial == 0:
                reasons.setdefault(consumer, {})[r.producer] = f"fill a slot of register {r.name!r}"
            if r.slots - r.initial <= 0:
                reasons.setdefault(r.producer, {})[consumer] = f"free a slot of register {r.name!r}"
    circle = _named_circle(reasons)
    if circle:
        pairs = zip(circle, [*circle[1:], circle[0]], strict=True)
        links = tuple(Link(a, "", b, reasons[a][b]) for a, b in pairs)
        words = [f"actor {a.waiting!r} waits for {a.waits_for!r} to {a.why}" for a in links]
        error = CircularWaitError(
            "checking that the actors of a plan do not wait for each other",
            found="a circle:" + "".join(f"\n    {line}" for line in words),
            allowed="registers in which every circle of waits has a filled or a free slot",
            hint="give one of these registers one more slot",
        )
        error.circle = links
        raise error


def _named_circle(waits: Mapping[str, Mapping[str, str]]) -> list[str]:
    names = list(dict.fromkeys((*waits, *(name for found in waits.values() for name in found))))
    number = {name: i for i, name in enumerate(names)}
    circle = _circle([[number[other] for other in waits.get(name, ())] for name in names])
    return [names[i] for i in circle]
