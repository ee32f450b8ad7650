"""The plan ledger: every reshard step with its reason, cost and alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from flow_core.base.shapes import Shape
from flow_core.comm.exchange import BOXING, DevicePair, exchange_of
from flow_core.compiler.reshard.planner import ReshardStep, TensorLayout, plan_routes
from flow_core.costs.links import LinkModel
from flow_core.plan import Buffer, Plan, Task
from flow_core.sharding.topology import Device

Links = tuple[tuple[Device, Device, int], ...]
"""One (from, to, bytes) entry for each pair of devices."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A boxing that was not chosen.

    Attributes:
        steps: names of the boxing's steps.
        through: the layout after each step, as text.
        nbytes: the number of bytes that cross devices.
    """

    steps: tuple[str, ...]
    through: tuple[str, ...]
    nbytes: int
    seconds: float

    def __str__(self) -> str:
        way = " then ".join(self.steps)
        return f"{way}: {self.nbytes:,} bytes, {self.seconds * 1e6:.1f} us"


@dataclass(frozen=True, slots=True)
class BoxingEntry:
    """A line of the plan ledger: one reshard step of one value.

    Attributes:
        value: the logical value.
        hop: name of the reshard step.
        source, target: text forms of the layouts.
        nbytes: the number of bytes that cross devices each time the reshard step runs.
        line: the source line of the op that reads the value.
        op: the op that reads the value; empty for a result of the job.
        why: the layout in which the value is produced, and the layout that the op requires.
        step, steps: the position of this reshard step in the route from the producer to the op,
            from 1 on, and the number of reshard steps of that route.
        runners_up: the alternatives to the whole route, the cheapest first.
        exchanges: names of the ``boxing`` ops of the reshard step, one for each group of devices.
        links: the bytes for each pair of devices, each time; empty in a plan of classes.
        sent: the bytes that the exchanges of the plan send each time, the sum of ``links``.
        bucket: name of the op into which the exchange was fused; empty if it was not fused.
        once: whether the reshard step runs once, when the plan is loaded, and not in each step of
            the job.
    """

    value: str
    hop: str
    source: str
    target: str
    nbytes: int
    seconds: float
    line: str
    op: str = ""
    why: str = ""
    step: int = 1
    steps: int = 1
    runners_up: tuple[Alternative, ...] = ()
    exchanges: tuple[str, ...] = ()
    links: Links = ()
    sent: int = 0
    bucket: str = ""
    once: bool = False


@lru_cache(maxsize=4096)
def summaries(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[Alternative, ...]:
    """Summarize the routes between two layouts, beginning with the planner's choice."""
    return tuple(
        Alternative(
            tuple(step.name for step in route.reshard_steps),
            tuple(str(step.target) for step in route.reshard_steps),
            route.nbytes,
            route.seconds,
        )
        for route in plan_routes(shape, itemsize, source, target, links)
    )


def alternatives(
    chosen: tuple[ReshardStep, ...],
    shape: Shape,
    itemsize: int,
    source: TensorLayout,
    target: TensorLayout,
    links: LinkModel,
) -> Iterator[Alternative]:
    """Yield the summaries of the planner's routes other than the chosen one."""
    if not chosen:
        return
    routes = plan_routes(shape, itemsize, source, target, links)
    found = summaries(shape, itemsize, source, target, links)
    for route, summary in zip(routes, found, strict=True):
        if route.reshard_steps != chosen:
            yield summary


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a member of an exchange in a plan sends.

    Attributes:
        once: whether the exchange runs once, when the plan is loaded.
        links: the bytes by (from, to); empty in a plan of classes.
    """

    task: str
    once: bool
    links: Mapping[DevicePair, int]


def completed(
    ledger: Iterable[BoxingEntry], plan: Plan, is_part: bool = False
) -> list[BoxingEntry]:
    """Complete the ledger from the finished plan, which determines links, buckets and ``once``.

    Args:
        ledger: the entries.
        is_part: whether the plan has no tasks of some devices.
    """
    found: dict[str, _Sent] = {}
    for once, tasks in ((False, plan.tasks), (True, plan.prologue)):
        for task in tasks:
            if task.type == BOXING:
                found.update(_members(task, once, None if is_part else plan.buffers))
    return [_completed(entry, found, is_part) for entry in ledger]


def _members(
    task: Task, once: bool, buffers: Sequence[Buffer] | None
) -> Iterator[tuple[str, _Sent]]:
    """Yield the members of an exchange; the links need the buffers of a plan of all devices."""
    if buffers is None:
        names: Sequence[str] = task.attrs["members"] or (task.op,)
        yield from ((name, _Sent(task.op, once, {})) for name in names)
        return
    exchange = exchange_of(task, buffers)
    links: list[dict[DevicePair, int]] = [{} for _ in exchange.member_names]
    for sender, receiver, nbytes, member in exchange.moves():
        pair = sender, receiver
        links[member][pair] = links[member].get(pair, 0) + nbytes
    for name, own in zip(exchange.member_names, links, strict=True):
        yield name, _Sent(task.op, once, own)


def _completed(entry: BoxingEntry, found: Mapping[str, _Sent], is_part: bool) -> BoxingEntry:
    links: dict[DevicePair, int] = {}
    sent, bucket, always = 0, "", not entry.exchanges
    for name in filter(found.__contains__, entry.exchanges):
        member = found[name]
        bucket = member.task if member.task != name else ""
        always = always or not member.once
        sent = entry.nbytes if is_part else sent + sum(member.links.values())
        for link, nbytes in member.links.items():
            links[link] = links.get(link, 0) + nbytes
    rows = tuple((a, b, n) for (a, b), n in links.items())
    return replace(entry, links=rows, sent=sent, bucket=bucket, once=not always)
