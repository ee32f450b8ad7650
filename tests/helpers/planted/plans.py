"""Bugs planted in plans: each changes a plan, and says which op and device a check should name.

Each function returns the changed plan, and the names that a finding may have: the op itself, or the
next one that reads what is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flow_core.base.alignment import aligned
from flow_core.comm.exchange import BOXING
from flow_core.observe.matrix.hazards import missing_waits
from flow_core.plan import Plan, Task
from flow_core.plugins.host import default_registry
from flow_core.sharding.topology import Device


@dataclass(frozen=True)
class Planted:
    """A plan with a bug.

    Attributes:
        plan: the plan.
        ops: names of ops, one of which a finding must have, or begin with.
        devices: the devices, one of which a finding must name; empty for any.
    """

    plan: Plan
    ops: tuple[str, ...]
    devices: tuple[Device, ...] = ()


def changed(plan: Plan, position: int, **changes: Any) -> Plan:
    """Return a plan with another task at a position."""
    tasks = list(plan.tasks)
    tasks[position] = replace(tasks[position], **changes)
    return replace(plan, tasks=tuple(tasks))


def with_attrs(plan: Plan, position: int, **attrs: Any) -> Plan:
    return changed(plan, position, attrs={**plan.tasks[position].attrs, **attrs})


def tasks_of(plan: Plan, *types: str) -> list[int]:
    return [i for i, task in enumerate(plan.tasks) if task.type in types]


def readers(plan: Plan, position: int) -> tuple[str, ...]:
    """Return the ops whose tasks read what a task writes."""
    made = set(plan.tasks[position].outputs)
    return tuple(task.op for task in plan.tasks[position + 1 :] if made & set(task.inputs))


def logical(name: str) -> str:
    """Return the name of the logical op of a task."""
    return name.partition("@")[0].partition("/box")[0]


def blamed(plan: Plan, position: int) -> tuple[str, ...]:
    """Return the op of a task, and those that read its results, also through exchanges."""
    found, waiting = [plan.tasks[position].op], [position]
    while waiting:
        at = waiting.pop()
        made = set(plan.tasks[at].outputs)
        for i in range(at + 1, len(plan.tasks)):
            if made & set(plan.tasks[i].inputs) and plan.tasks[i].op not in found:
                found.append(plan.tasks[i].op)
                if plan.tasks[i].type == BOXING or plan.tasks[at].type == BOXING:
                    waiting.append(i)
    return tuple(found)


# ------------------------------------------------------------------------------------- exchanges


def exchanges(plan: Plan, rng: random.Random, holds: Callable[[Task], bool]) -> int:
    found = [i for i in tasks_of(plan, BOXING) if holds(plan.tasks[i])]
    return rng.choice(found)


def swapped_ranks(plan: Plan, rng: random.Random) -> Planted:
    """Two ranks of an exchange get each other's blocks."""

    def holds(task: Task) -> bool:
        rows = task.attrs["blocks"]
        return any(_swaps(rows)) and len({plan.buffers[i].type for i in task.inputs}) == 1

    at = exchanges(plan, rng, holds)
    rows = list(plan.tasks[at].attrs["blocks"])
    i, j = rng.choice(list(_swaps(rows)))
    rows[i], rows[j] = (
        (rows[j][0], rows[j][1], *rows[i][2:]),
        (rows[i][0], rows[i][1], *rows[j][2:]),
    )
    return Planted(with_attrs(plan, at, blocks=tuple(rows)), blamed(plan, at))


def _swaps(rows: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for i, a in enumerate(rows):
        for j in range(i):
            if a[4] == rows[j][4] and (a[0], a[1]) != (rows[j][0], rows[j][1]):
                yield j, i


def lost_block(plan: Plan, rng: random.Random) -> Planted:
    """A device keeps what was in its memory before: an exchange does not write a block."""
    at = exchanges(plan, rng, lambda task: bool(task.attrs["blocks"]))
    rows = list(plan.tasks[at].attrs["blocks"])
    row = rows.pop(rng.randrange(len(rows)))
    device = plan.buffers[plan.tasks[at].outputs[row[2]]].device
    return Planted(with_attrs(plan, at, blocks=tuple(rows)), blamed(plan, at), (device,))


def shifted_block(plan: Plan, rng: random.Random) -> Planted:
    """A part begins one row too early, as with a vocabulary that is divided unevenly."""

    def rows_of(task: Task) -> list[int]:
        rows = task.attrs["blocks"]
        return [i for i, row in enumerate(rows) if any(x > 0 for x in row[1])]

    at = exchanges(plan, rng, lambda task: bool(rows_of(task)))
    task = plan.tasks[at]
    rows, i = list(task.attrs["blocks"]), rng.choice(rows_of(task))
    start = list(rows[i][1])
    axis = next(axis for axis, x in enumerate(start) if x > 0)
    start[axis] -= 1
    rows[i] = (rows[i][0], tuple(start), *rows[i][2:])
    return Planted(with_attrs(plan, at, blocks=tuple(rows)), blamed(plan, at))


def term_twice(plan: Plan, rng: random.Random) -> Planted:
    """A sum of partial results has one rank's term twice, and another's not at all."""

    def holds(task: Task) -> bool:
        types = [plan.buffers[i].type for i in task.inputs]
        return task.attrs["collective"] == "all_reduce" and types[0] == types[1]

    at = exchanges(plan, rng, holds)
    task = plan.tasks[at]
    inputs = (task.inputs[1], *task.inputs[1:])
    return Planted(changed(plan, at, inputs=inputs), blamed(plan, at))


def largest_for_sum(plan: Plan, rng: random.Random) -> Planted:
    """Partial results are combined by their maximum."""
    at = exchanges(
        plan,
        rng,
        lambda task: (
            task.attrs["combine"] == "sum"
            and task.attrs["collective"] in ("all_reduce", "reduce_scatter", "reduce")
        ),
    )
    return Planted(with_attrs(plan, at, combine="max"), blamed(plan, at))


# ------------------------------------------------------------------------------------------ tasks


def one_of(plan: Plan, rng: random.Random, *types: str) -> int:
    return rng.choice(tasks_of(plan, *types))


def wrong_scale(plan: Plan, rng: random.Random) -> Planted:
    """A partial sum is multiplied by 2 on one device."""
    at = one_of(plan, rng, "matmul", "batch_matmul")
    task = plan.tasks[at]
    scaled = with_attrs(plan, at, alpha=2.0 * task.attrs["alpha"])
    return Planted(scaled, blamed(plan, at), (task.device,))


def skipped_update(plan: Plan, rng: random.Random) -> Planted:
    """A device does not update a variable."""
    ops = default_registry().ops
    found = [
        i for i, t in enumerate(plan.tasks) if t.type.endswith("_update") and ops[t.type].mutates
    ]
    at = rng.choice(found)
    task = plan.tasks[at]
    return Planted(without(plan, at), (task.op,), (task.device,))


def without(plan: Plan, position: int) -> Plan:
    """Return a plan without a task; others wait for what it waited for."""
    gone = plan.tasks[position]

    def place(i: int) -> int:
        return i - (i > position)

    tasks = []
    for i, task in enumerate(plan.tasks):
        if i == position:
            continue
        waits = set(task.waits)
        if position in waits:
            waits = waits - {position} | set(gone.waits)
        tasks.append(replace(task, waits=tuple(sorted(map(place, waits)))))
    return replace(plan, tasks=tuple(tasks))


def stale_value(plan: Plan, rng: random.Random) -> Planted:
    """A task is left out, so that those that follow read what the memory held before."""
    ops = default_registry().ops
    found = [
        i
        for i, task in enumerate(plan.tasks)
        if task.outputs and readers(plan, i) and not ops[task.type].mutates
        and not set(task.inputs) & set(task.outputs)
    ]  # fmt: skip
    at = rng.choice(found)
    return Planted(without(plan, at), blamed(plan, at))


def other_input(plan: Plan, rng: random.Random) -> Planted:
    """A task reads another value of the same type, such as that of another micro-batch."""
    found = []
    for at, task in enumerate(plan.tasks):
        if task.type == BOXING:
            continue
        for k, i in enumerate(task.inputs):
            mine = plan.buffers[i]
            for j, other in enumerate(plan.buffers):
                same = (other.type, other.device, other.kind) == (mine.type, mine.device, mine.kind)
                live = other.kind == "variable" or other.first < at <= other.last
                fits = j != i and j not in task.inputs and mine.type.size > 1
                if same and live and fits and not default_registry().ops[task.type].mutates:
                    found.append((at, k, j))
    at, k, j = rng.choice(found)
    task = plan.tasks[at]
    inputs = (*task.inputs[:k], j, *task.inputs[k + 1 :])
    return Planted(changed(plan, at, inputs=inputs), blamed(plan, at), (task.device,))


def other_seed(plan: Plan, rng: random.Random) -> Planted:
    """A device draws another mask of a dropout."""
    at = one_of(plan, rng, "random_mask_like")
    task = plan.tasks[at]
    return Planted(changed(plan, at, seed=task.seed + 1), blamed(plan, at), (task.device,))


# ----------------------------------------------------------------------------------------- memory


def missing_wait(plan: Plan, rng: random.Random) -> Planted:
    """A task does not wait for another one with which it shares memory."""
    ops = default_registry().ops
    order = list(range(len(plan.tasks)))
    rng.shuffle(order)
    for at in order:
        for wait in plan.tasks[at].waits:
            waits = tuple(w for w in plan.tasks[at].waits if w != wait)
            found = changed(plan, at, waits=waits)
            if any(position == at for position, _ in missing_waits(found, ops)):
                return Planted(found, (plan.tasks[at].op,))
    raise LookupError("no wait is needed")


def shared_memory(plan: Plan, rng: random.Random) -> Planted:
    """Two values that live at the same time are in the same memory."""
    pairs = [
        (i, j)
        for i, a in enumerate(plan.buffers)
        for j, b in enumerate(plan.buffers)
        if a.kind == b.kind == "temp" and a.memory == b.memory and a.type == b.type
        and a.first < b.first < a.last and a.offset != b.offset
    ]  # fmt: skip
    i, j = rng.choice(pairs)
    buffers = list(plan.buffers)
    buffers[j] = replace(buffers[j], offset=buffers[i].offset)
    low, high = buffers[i].offset, buffers[i].offset + aligned(buffers[i].type.nbytes)
    near = {
        k
        for k, b in enumerate(buffers)
        if b.memory == buffers[i].memory and b.offset < high and low < b.offset + b.type.nbytes
    }
    readers_of = tuple(t.op for t in plan.tasks if near & {*t.inputs, *t.outputs, t.workspace})
    return Planted(replace(plan, buffers=tuple(buffers)), readers_of, (buffers[i].device,))


def shifted_feed(plan: Plan, rng: random.Random) -> Planted:
    """A device is fed rows that begin one row too early."""
    found = [k for k, (_, region) in enumerate(plan.fed) if region and region[0][0] > 0]
    k = rng.choice(found)
    index, region = plan.fed[k]
    low, high = region[0]
    fed = list(plan.fed)
    fed[k] = index, ((low - 1, high - 1), *region[1:])
    buffer = plan.feeds[k]
    names = tuple(t.op for t in plan.tasks if buffer in t.inputs)
    boxed = [i for i, t in enumerate(plan.tasks) if buffer in t.inputs]
    more = tuple(name for i in boxed for name in blamed(plan, i))
    return Planted(replace(plan, fed=tuple(fed)), (*names, *more))


def shifted_shard(plan: Plan, rng: random.Random) -> Planted:
    """A device holds rows of a weight that begin one row too early."""
    found = [n for n, (_, region) in plan.shards.items() if region and region[0][0] > 0]
    name = rng.choice(found)
    of, region = plan.shards[name]
    low, high = region[0]
    shards = {**plan.shards, name: (of, ((low - 1, high - 1), *region[1:]))}
    buffer = plan.variables[name]
    names = [t.op for t in plan.tasks if buffer in t.inputs]
    more = [n for i, t in enumerate(plan.tasks) if buffer in t.inputs for n in blamed(plan, i)]
    return Planted(replace(plan, shards=shards), (*names, *more), (plan.buffers[buffer].device,))


def circle(plan: Plan, rng: random.Random) -> Planted:
    """A task waits for a later one that needs it."""
    found = [(i, j) for j, task in enumerate(plan.tasks) for i in task.waits]
    i, j = rng.choice(found)
    waits = (*plan.tasks[i].waits, j)
    return Planted(changed(plan, i, waits=waits), (plan.tasks[i].op, plan.tasks[j].op))


BUGS: Mapping[str, Callable[[Plan, random.Random], Planted]] = {
    f.__name__: f
    for f in (
        swapped_ranks, lost_block, shifted_block, term_twice, largest_for_sum, wrong_scale,
        skipped_update, stale_value, other_input, other_seed, missing_wait, shared_memory,
        shifted_feed, shifted_shard, circle,
    )
}  # fmt: skip
