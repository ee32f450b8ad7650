"""The plan ledger: every reshard step with its reason, cost and alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from flow_core.base.shapes import Shape
from flow_core.comm.exchange import DevicePair, Exchange, exchanges
from flow_core.compiler.reshard.planner import ReshardStep, TensorLayout, plan_routes
from flow_core.plan import Plan
from flow_core.sharding.topology import Device, LinkModel

Links = tuple[tuple[Device, Device, int], ...]
"""One (from, to, bytes) entry for each pair of devices."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A boxing that was not chosen.

    Attributes:
        steps: names of the boxing's steps.
        through: the layout after each step, as text.
        nbytes: the number of bytes that cross devices.
        seconds: the predicted time.
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
        seconds: the predicted time.
        line: the source line of the op that reads the value.
        op: the op that reads the value; empty for a result of the job.
        why: the layout in which the value is produced, and the layout that the op requires.
        step, steps: the position of this reshard step in the route from the producer to the op,
            from 1 on, and the number of reshard steps of that route.
        runners_up: the alternatives to the whole route, the cheapest first.
        exchanges: names of the ``boxing`` ops of the reshard step, one for each group of devices.
        links: the bytes for each pair of devices, each time; their sum is ``nbytes``.
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
    bucket: str = ""
    once: bool = False


@lru_cache(maxsize=4096)
def summaries(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[Alternative, ...]:
    """Summarise the routes between two layouts, beginning with the planner's choice."""
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


def completed(ledger: Iterable[BoxingEntry], plan: Plan) -> list[BoxingEntry]:
    """Complete the ledger from the finished plan, which determines links, buckets and ``once``."""
    found: dict[str, tuple[Exchange, int, bool]] = {}
    for once in (False, True):
        for exchange in exchanges(plan, once):
            for member, name in enumerate(exchange.member_names):
                found[name] = (exchange, member, once)
    return [_completed(entry, found) for entry in ledger]


def _completed(entry: BoxingEntry, found: Mapping[str, tuple[Exchange, int, bool]]) -> BoxingEntry:
    links: dict[DevicePair, int] = {}
    bucket, always = "", not entry.exchanges
    for name in filter(found.__contains__, entry.exchanges):
        exchange, member, once = found[name]
        bucket = exchange.name if exchange.name != name else ""
        always = always or not once
        for link, nbytes in exchange.links(member).items():
            links[link] = links.get(link, 0) + nbytes
    rows = tuple((a, b, n) for (a, b), n in links.items())
    return replace(entry, links=rows, bucket=bucket, once=not always)
