"""The boxing planner: reshard steps from one layout of a tensor to another.

The planner finds the cheapest sequence of steps according to the link model, by Dijkstra's
algorithm over candidate layouts.  For example, partial results for other devices may first be
combined in parts.  Most transitions need no search: a step is optimal if no device sends for a
longer time than the busiest receiver must receive.

Invariants: every step of a route is legal (`flow_core.compiler.reshard.direct`); results depend
only on the arguments and are cached, so that equal transitions have the same steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, product

from flow_core.base.errors import GraphError
from flow_core.base.shapes import Shape
from flow_core.comm.pieces import Piece
from flow_core.comm.roles import partial_roles
from flow_core.compiler.reshard.direct import direct
from flow_core.compiler.reshard.groups import Group
from flow_core.compiler.reshard.hierarchy import with_common_hierarchy
from flow_core.compiler.reshard.steps import ReshardStep, busiest, even_form, groups_of, is_in_place
from flow_core.costs.links import LinkModel
from flow_core.sharding.layouts import TensorLayout, holds_partial
from flow_core.sharding.sbp import B, Partial, Sbp, Split
from flow_core.sharding.topology import devices_of

__all__ = [
    "BoxingError",
    "Group",
    "Piece",
    "ReshardStep",
    "Route",
    "TensorLayout",
    "direct",
    "groups_of",
    "holds_partial",
    "is_in_place",
    "plan_boxing",
    "plan_routes",
]

MOST_STEPS = 7
MOST_ROUTES = 4
STEP_SECONDS = 1e-7
"""The fixed cost of each step, so that fewer steps are preferred."""


class BoxingError(GraphError):
    """Error for two layouts between which no boxing exists."""


@dataclass(frozen=True, slots=True)
class Route:
    """A sequence of steps between two layouts."""

    reshard_steps: tuple[ReshardStep, ...]
    nbytes: int  # the number of bytes that cross devices
    seconds: float


@lru_cache(maxsize=8192)
def plan_boxing(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[ReshardStep, ...]:
    """Return the cheapest steps between two layouts, or no steps if nothing has to move.

    >>> from flow_core.sharding.sbp import P, S
    >>> from flow_core.sharding.topology import Placement
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

    Raises `BoxingError` if no boxing exists.
    """
    source, target = with_common_hierarchy(shape, source, target)
    if source == target:
        return ()
    step = _optimal_step(shape, itemsize, source, target, links)
    if step is not None:
        return (step,)
    return _Search(shape, itemsize, source, target, links, 1).run()[0]


@lru_cache(maxsize=4096)
def plan_routes(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[Route, ...]:
    """Return the choice of `plan_boxing`, followed by the runners-up, the cheapest first.

    >>> from flow_core.sharding.sbp import P
    >>> from flow_core.sharding.topology import Placement
    >>> gpus = Placement.parse("gpu", "0:0-3")
    >>> routes = plan_routes(
    ...     (8, 4), 4, TensorLayout(gpus, (P,)), TensorLayout(gpus, (B,)), LinkModel()
    ... )
    >>> [[step.name for step in route.reshard_steps] for route in routes][:2]
    [['all_reduce'], ['reduce_scatter', 'all_gather']]
    """
    chosen = plan_boxing(shape, itemsize, source, target, links)
    source, target = with_common_hierarchy(shape, source, target)
    others = _Search(shape, itemsize, source, target, links, MOST_ROUTES).run() if chosen else []
    found = dict.fromkeys((chosen, *others))
    return tuple([_route(reshard_steps, itemsize, links) for reshard_steps in found][:MOST_ROUTES])


def _route(reshard_steps: tuple[ReshardStep, ...], itemsize: int, links: LinkModel) -> Route:
    nbytes = sum(step.elements() for step in reshard_steps) * itemsize
    return Route(reshard_steps, nbytes, sum(s.seconds(itemsize, links) for s in reshard_steps))


def _optimal_step(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> ReshardStep | None:
    """Return the direct step if it is provably optimal, else None.

    Every device must receive the data that it lacks, and a direct step sends each device only these
    data.  If the busiest receiver needs data of all devices, some messages must follow each other:
    at least log2(p) for p devices.  A direct step is therefore optimal if it takes no longer than
    the busiest receiver spends receiving without latency, and that many latencies.  Partial results
    are an exception: they may be combined on the way, and which device receives a summand of new
    ones is free.  An all-reduce over one class of links is optimal, too.
    """
    step = direct(shape, source, target)
    if step is None:
        return None
    if step.groups:
        nearest, _ = links.groups(devices_of(source.placement))[0]
        return step if len(nearest) == 1 else None
    seconds = step.seconds(itemsize, links)
    if not seconds:
        return step
    roles = partial_roles(source, target)
    if roles.combined or roles.made:
        return None
    _, into = busiest(step, itemsize, links.without_latency())
    rounds = (source.placement.size - 1).bit_length() if even_form(step) else 1
    latency = min(link.latency for link in links.classes)
    return step if seconds <= (into + max(1, rounds) * latency) * (1 + 1e-9) else None


@dataclass(slots=True)
class _Search:
    """Dijkstra's algorithm over layouts, which stops after ``wanted`` routes to the target."""

    shape: Shape
    itemsize: int
    source: TensorLayout
    target: TensorLayout
    links: LinkModel
    wanted: int
    bounds: list[float] = field(default_factory=list)

    def run(self) -> list[tuple[ReshardStep, ...]]:
        """Return the routes, the cheapest first; raise `BoxingError` if no route exists."""
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
            elif layout not in done and len(reshard_steps) < MOST_STEPS:
                done.add(layout)
                for total, step in self._onward(cost, layout, layouts, done):
                    heapq.heappush(queue, (total, next(order), step.target, (*reshard_steps, step)))
        if not found:
            raise self._no_route()
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
            step, seconds = leg
            total = cost + seconds + STEP_SECONDS
            if self._too_late(total):
                continue
            if other == self.target:
                self.bounds = sorted([*self.bounds, total])[: self.wanted]
            yield total, step

    def _too_late(self, cost: float) -> bool:
        """Return whether enough cheaper routes to the target are known."""
        return len(self.bounds) == self.wanted and cost > self.bounds[-1]

    def _no_route(self) -> BoxingError:
        return BoxingError(
            f"boxing a tensor of shape {self.shape}",
            found=f"no route from {self.source} to {self.target}",
            allowed=f"layouts with a route of at most {MOST_STEPS} reshard steps between them",
        )


@lru_cache(maxsize=8192)
def _leg(
    shape: Shape, itemsize: int, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> tuple[ReshardStep, float] | None:
    """Return the direct step between two layouts and its time, cached for all routes."""
    step = direct(shape, source, target)
    return None if step is None else (step, step.seconds(itemsize, links))


def _candidates(shape: Shape, source: TensorLayout, target: TensorLayout) -> list[TensorLayout]:
    """Return the target, and the possible intermediate layouts on both placements."""
    found = dict.fromkeys((target,))
    for layout in (source, target):
        others = _others(shape, 2 if len(layout.sbp) < 3 else 1)
        options = [list(dict.fromkeys((s, *others))) for s in layout.sbp]
        mixed = sum(isinstance(s, Partial) for s in layout.sbp) > 1
        for sbp in product(*options):
            if mixed or not any(isinstance(s, Partial) for s in sbp):
                found[TensorLayout(layout.placement, sbp)] = None
    if holds_partial(source):
        found[TensorLayout(target.placement.only(0), (B,))] = None
        found[TensorLayout(source.placement.only(0), (B,))] = None
    found.pop(source, None)
    return list(found)


def _others(shape: Shape, axes: int) -> list[Sbp]:
    """Return the candidates for a hierarchy dimension: broadcast, or a split of a longest axis."""
    longest = sorted(range(len(shape)), key=lambda i: -shape[i])[:axes]
    return [B, *map(Split, longest)]
