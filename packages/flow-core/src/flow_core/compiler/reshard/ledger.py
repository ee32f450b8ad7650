"""The plan ledger: every hop of boxing, why it is there, what it costs, what else could be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from flow_core.base.shapes import Shape
from flow_core.compiler.reshard.planner import ReshardStep, TensorLayout, plan_routes
from flow_core.exchange import DevicePair, Exchange, exchanges
from flow_core.plan import Plan
from flow_core.sharding.topology import Device, LinkModel

Links = tuple[tuple[Device, Device, int], ...]
"""(from, to, bytes) per pair of devices."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way that boxing might have gone.

    Attributes:
        steps: names of its hops.
        through: the layouts after each hop, as texts.
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
    """A line of the plan ledger: one hop of one value.

    Attributes:
        value: the logical value.
        hop: name of the hop.
        source, target: text forms of the layouts.
        nbytes: bytes that cross devices each time.
        seconds: predicted time.
        line: the user's line of the op that needs it.
        op: that op, empty for a result of the job.
        why: what the value's producer makes, and what that op wants.
        step, steps: which step it is of how many, on the way from producer to that op.
        runners_up: other ways for all of these steps, the cheapest first.
        exchanges: names of the ``boxing`` ops that do it, one per group of devices.
        links: bytes per pair of devices each time; all together are ``nbytes``.
        bucket: name of the op that it was fused into, empty when it runs by itself.
        once: whether it runs once, when the plan is loaded, and not at each step.
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
    """The chosen way between two layouts and the runners-up, as texts and numbers."""
    return tuple(
        Alternative(
            tuple(hop.name for hop in route.reshard_steps),
            tuple(str(hop.target) for hop in route.reshard_steps),
            route.nbytes,
            route.seconds,
        )
        for route in plan_routes(shape, itemsize, source, target, links)
    )


def others_than(
    chosen: tuple[ReshardStep, ...],
    shape: Shape,
    itemsize: int,
    source: TensorLayout,
    target: TensorLayout,
    links: LinkModel,
) -> Iterator[Alternative]:
    """The ways between two layouts but the chosen one."""
    if not chosen:
        return
    routes = plan_routes(shape, itemsize, source, target, links)
    found = summaries(shape, itemsize, source, target, links)
    for route, summary in zip(routes, found, strict=True):
        if route.reshard_steps != chosen:
            yield summary


def settled(ledger: Iterable[BoxingEntry], plan: Plan) -> list[BoxingEntry]:
    """The ledger with what only the finished plan knows: bytes per link, buckets, prologue."""
    found: dict[str, tuple[Exchange, int, bool]] = {}
    for once in (False, True):
        for exchange in exchanges(plan, once):
            for member, name in enumerate(exchange.member_names):
                found[name] = (exchange, member, once)
    return [_settled(entry, found) for entry in ledger]


def _settled(entry: BoxingEntry, found: Mapping[str, tuple[Exchange, int, bool]]) -> BoxingEntry:
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
