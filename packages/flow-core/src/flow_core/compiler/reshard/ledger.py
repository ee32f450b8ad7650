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
    """A boxing that was not chosen."""

    steps: tuple[str, ...]  # names of the boxing's steps
    through: tuple[str, ...]  # the layout after each step, as text
    nbytes: int  # the number of bytes that cross devices
    seconds: float

    def __str__(self) -> str:
        way = " then ".join(self.steps)
        return f"{way}: {self.nbytes:,} bytes, {self.seconds * 1e6:.1f} us"


@dataclass(frozen=True, slots=True)
class BoxingEntry:
    """A line of the plan ledger: one reshard step of one value."""

    value: str  # the logical value
    hop: str  # the reshard step
    source: str  # the layouts as text
    target: str
    nbytes: int  # the number of bytes that cross devices each time the reshard step runs
    seconds: float
    line: str  # the source line of the op that reads the value
    op: str = ""  # the op that reads the value; empty for a result of the job
    why: str = ""  # the layout in which the value is produced, and the layout that the op requires
    step: int = 1  # of the reshard step in the route from the producer to the op, from 1 on
    steps: int = 1  # of that route
    runners_up: tuple[Alternative, ...] = ()  # alternatives to the whole route, the cheapest first
    exchanges: tuple[str, ...] = ()  # the ``boxing`` ops of the step, one for each group of devices
    links: Links = ()  # the bytes for each pair of devices, each time; empty in a plan of classes
    sent: int = 0  # the bytes that the exchanges of the plan send each time, the sum of ``links``
    bucket: str = ""  # name of the op into which the exchange was fused; empty if it was not fused
    once: bool = False  # at the loading of the plan, not in each step of the job


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
    """What a member of an exchange in a plan sends."""

    task: str
    once: bool  # whether the exchange runs once, when the plan is loaded
    links: Mapping[DevicePair, int]  # the bytes by (from, to); empty in a plan of classes


def completed(
    ledger: Iterable[BoxingEntry], plan: Plan, is_part: bool = False
) -> list[BoxingEntry]:
    """Complete the ledger from the finished plan, which determines links, buckets and ``once``.

    Args:
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
