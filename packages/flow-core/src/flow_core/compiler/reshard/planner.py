"""Boxing: how a tensor gets from one layout to another.

The planner looks for the cheapest sequence of hops under the link model, by Dijkstra's
algorithm over the layouts that can help: where partial results go to other devices, for example,
they are combined in parts first.  Most transitions need no search: a hop in which no device
sends longer than the busiest one must receive cannot be beaten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, product

from flow_core.base.errors import GraphError
from flow_core.base.shapes import Shape
from flow_core.compiler.reshard.steps import (
    Group,
    Piece,
    ReshardStep,
    TensorLayout,
    aligned,
    busiest,
    direct,
    groups_of,
    holds_partial,
    is_there,
)
from flow_core.sharding.sbp import B, Partial, Sbp, Split
from flow_core.sharding.topology import LinkModel, Placement

__all__ = [
    "BoxingError",
    "Group",
    "Piece",
    "ReshardStep",
    "Route",
    "TensorLayout",
    "boxing_seconds",
    "direct",
    "groups_of",
    "holds_partial",
    "is_there",
    "plan_boxing",
    "plan_routes",
]

MOST_HOPS = 7
MOST_ROUTES = 4
PER_HOP = 1e-7
"""Seconds that a hop costs besides its bytes, so that fewer are preferred."""


class BoxingError(GraphError):
    """Two layouts between which nothing leads."""


@dataclass(frozen=True, slots=True)
class Route:
    """A way between two layouts.

    Attributes:
        hops: its steps.
        nbytes: bytes that cross devices.
        seconds: predicted time.
    """

    reshard_steps: tuple[ReshardStep, ...]
    nbytes: int
    seconds: float


@lru_cache(maxsize=65536)
def plan_boxing(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[ReshardStep, ...]:
    """The cheapest hops between two layouts; none when nothing has to move.

    >>> from flow_core.sharding.sbp import P, S
    >>> gpus = Placement.parse("gpu", "0:0-3")
    >>> steps = plan_boxing(
    ...     (8, 4), 4, TensorLayout(gpus, (P,)), TensorLayout(gpus, (B,)), LinkModel()
    ... )
    >>> [step.name for step in steps], sum(step.elements() for step in steps)
    (['all_reduce'], 192)
    >>> cpu = Placement.parse("cpu", "0:0-1")
    >>> steps = plan_boxing(
    ...     (8, 4), 4, TensorLayout(gpus, (P,)), TensorLayout(cpu, (B,)), LinkModel()
    ... )
    >>> [step.name for step in steps]
    ['reduce', 'copy_d2h']

    Raises:
        BoxingError: no way leads there.
    """
    source, target = aligned(shape, source, target)
    if source == target:
        return ()
    hop = _obvious(shape, itemsize, source, target, links)
    if hop is not None:
        return (hop,)
    return _Search(shape, itemsize, source, target, links, 1).run()[0]


@lru_cache(maxsize=4096)
def plan_routes(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[Route, ...]:
    """What `plan_boxing` chooses, and after it the runners-up, the cheapest first.

    >>> gpus = Placement.parse("gpu", "0:0-3")
    >>> from flow_core.sharding.sbp import P
    >>> routes = plan_routes(
    ...     (8, 4), 4, TensorLayout(gpus, (P,)), TensorLayout(gpus, (B,)), LinkModel()
    ... )
    >>> [[step.name for step in route.reshard_steps] for route in routes][:2]
    [['all_reduce'], ['reduce_scatter', 'all_gather']]
    """
    chosen = plan_boxing(shape, itemsize, source, target, links)
    source, target = aligned(shape, source, target)
    others = _Search(shape, itemsize, source, target, links, MOST_ROUTES).run() if chosen else []
    found = dict.fromkeys((chosen, *others))
    return tuple([_route(reshard_steps, itemsize, links) for reshard_steps in found][:MOST_ROUTES])


def _route(reshard_steps: tuple[ReshardStep, ...], itemsize: int, links: LinkModel) -> Route:
    nbytes = sum(hop.elements() for hop in reshard_steps) * itemsize
    return Route(reshard_steps, nbytes, sum(hop.seconds(itemsize, links) for hop in reshard_steps))


def _obvious(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> ReshardStep | None:
    """The one hop that nothing can beat, None when that is not clear.

    Every device must receive what it lacks.  A hop brings it just that, so if no device is
    busier sending, no way is faster; nor is any than an all-reduce on one machine.
    """
    hop = direct(shape, source, target)
    if hop is None:
        return None
    if hop.groups:
        machines = {machine for machine, _ in source.placement.devices}
        return hop if len(machines) == 1 else None
    out, into = busiest(hop, itemsize, links)
    return hop if out <= into * (1 + 1e-9) else None


@dataclass(slots=True)
class _Search:
    """Dijkstra's algorithm over layouts; stops at so many ways to the target."""

    shape: Shape
    itemsize: int
    source: TensorLayout
    target: TensorLayout
    links: LinkModel
    wanted: int
    bounds: list[float] = field(default_factory=list)

    def run(self) -> list[tuple[ReshardStep, ...]]:
        """The ways found, the cheapest first.

        Raises:
            BoxingError: there are none.
        """
        layouts = _candidates(self.shape, self.source, self.target)
        order = count()
        queue: list[tuple[float, int, TensorLayout, tuple[ReshardStep, ...]]] = [
            (0.0, next(order), self.source, ())
        ]
        done: set[TensorLayout] = set()
        found: list[tuple[ReshardStep, ...]] = []
        while queue and len(found) < self.wanted:
            cost, _, layout, reshard_steps = heapq.heappop(queue)
            if layout == self.target:
                found.append(reshard_steps)
            elif layout not in done and len(reshard_steps) < MOST_HOPS:
                done.add(layout)
                for total, hop in self._onward(cost, layout, layouts, done):
                    heapq.heappush(queue, (total, next(order), hop.target, (*reshard_steps, hop)))
        if not found:
            raise self._no_way()
        return found

    def _onward(
        self,
        cost: float,
        layout: TensorLayout,
        layouts: list[TensorLayout],
        done: set[TensorLayout],
    ) -> Iterator[tuple[float, ReshardStep]]:
        for other in layouts:
            if other in done or self._too_late(cost):
                continue
            leg = _leg(self.shape, self.itemsize, layout, other, self.links)
            if leg is None:
                continue
            hop, seconds = leg
            total = cost + seconds + PER_HOP
            if self._too_late(total):
                continue
            if other == self.target:
                self.bounds = sorted([*self.bounds, total])[: self.wanted]
            yield total, hop

    def _too_late(self, cost: float) -> bool:
        """Whether enough cheaper ways to the target are known."""
        return len(self.bounds) == self.wanted and cost > self.bounds[-1]

    def _no_way(self) -> BoxingError:
        return BoxingError(
            f"boxing a tensor of shape {self.shape}",
            found=f"no way from {self.source} to {self.target}",
            allowed=f"ways of at most {MOST_HOPS} steps",
        )


@lru_cache(maxsize=8192)
def _leg(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[ReshardStep, float] | None:
    """A step of some way and its time: ways between other layouts have it, too."""
    hop = direct(shape, source, target)
    return None if hop is None else (hop, hop.seconds(itemsize, links))


def _candidates(shape: Shape, source: TensorLayout, target: TensorLayout) -> list[TensorLayout]:
    """The target, and on either placement the layouts that may lie between."""
    found = dict.fromkeys((target,))
    for layout in (source, target):
        others = _others(shape, 2 if len(layout.sbp) < 3 else 1)
        options = [list(dict.fromkeys((s, *others))) for s in layout.sbp]
        mixed = sum(isinstance(s, Partial) for s in layout.sbp) > 1
        for sbp in product(*options):
            if mixed or not any(isinstance(s, Partial) for s in sbp):
                found[TensorLayout(layout.placement, sbp)] = None
    if holds_partial(source):
        found[TensorLayout(_first_device(target.placement), (B,))] = None
        found[TensorLayout(_first_device(source.placement), (B,))] = None
    found.pop(source, None)
    return list(found)


def _first_device(placement: Placement) -> Placement:
    return Placement(placement.device_type, placement.devices[:1])


def _others(shape: Shape, axes: int) -> list[Sbp]:
    """What may help in a hierarchy dimension: to be whole, or split on one of the longest axes."""
    longest = sorted(range(len(shape)), key=lambda i: -shape[i])[:axes]
    return [B, *map(Split, longest)]


def boxing_seconds(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> float:
    """Predicted time of the cheapest boxing; infinite when there is none."""
    try:
        reshard_steps = plan_boxing(shape, itemsize, source, target, links)
    except BoxingError:
        return float("inf")
    return sum(hop.seconds(itemsize, links) for hop in reshard_steps)
