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
"""(from, to, bytes) per pair of devices."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A boxing that was not chosen.

    Attributes:
        steps: names of its steps.
        through: the layouts after each step, as texts.
        nbytes: bytes that cross devices.
        seconds: predicted time.
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
        hop: name of the step.
        source, target: text forms of the layouts.
        nbytes: bytes that cross devices each time.
        seconds: predicted time.
        line: the user's line of the op that reads the value.
        op: that op, empty for a result of the job.
        why: the layout from the value's producer, and the one that the op requires.
        step, steps: the number of the step, and of all steps from the producer to the op.
        runners_up: alternatives to all of these steps, the cheapest first.
        exchanges: names of the ``boxing`` ops of the step, one per group of devices.
        links: bytes per pair of devices each time; their sum is ``nbytes``.
        bucket: name of the op that it was fused into, empty when it was not.
        once: whether it runs once, when the plan is loaded, and not in each step of the job.
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
    """Summarise the routes between two layouts, the chosen one first."""
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
    """Yield the alternatives to the chosen route."""
    if not chosen:
        return
    routes = plan_routes(shape, itemsize, source, target, links)
    found = summaries(shape, itemsize, source, target, links)
    for route, summary in zip(routes, found, strict=True):
        if route.reshard_steps != chosen:
            yield summary


def completed(ledger: Iterable[BoxingEntry], plan: Plan) -> list[BoxingEntry]:
    """Complete the ledger from the finished plan: bytes per link, buckets, prologue."""
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
