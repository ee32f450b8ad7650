"""The choice among boxing methods: the planner's routes and the methods of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from flow_core.compiler.reshard.planner import (
    STEP_SECONDS,
    BoxingError,
    ReshardStep,
    TensorLayout,
    direct,
    plan_boxing,
    plan_routes,
)
from flow_core.costs.links import LinkModel
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import BoxingSpec, load
from flow_core.sharding.sbp import NdSbp, format_nd_sbp

Choose = Callable[[TensorLayout, TensorLayout, TensorType, Sequence[BoxingSpec]], str | None]


class Registered(Protocol):
    """The interface to the boxing methods and hooks of the registry."""

    @property
    def boxing(self) -> Any:
        """The `BoxingSpec` records of plugins, by name."""

    def observers(self, hook: str) -> tuple[Callable[..., Any], ...]:
        """Return the implementations of a hook."""

    def choose_boxing(
        self, src: Any, dst: Any, tensor: Any, candidates: Sequence[BoxingSpec]
    ) -> str | None:
        """Return the name of the method that a plugin chooses, or None if no plugin chooses."""


@dataclass(frozen=True, slots=True)
class _Method:
    spec: BoxingSpec
    reshard_steps: tuple[ReshardStep, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class BoxingMethods:
    """All boxing methods: the routes of the planner and the methods of plugins."""

    specs: tuple[BoxingSpec, ...] = ()  # the methods of plugins
    choose: Choose | None = None  # by which plugins choose a method; None if no plugin has one

    @classmethod
    def of(cls, registry: Registered) -> BoxingMethods:
        observers = registry.observers("flow_choose_boxing")
        return cls(tuple(registry.boxing.values()), registry.choose_boxing if observers else None)

    def reshard_steps(
        self, tensor: TensorType, source: TensorLayout, target: TensorLayout, links: LinkModel
    ) -> tuple[ReshardStep, ...]:
        """Return the steps of the method that a plugin chooses, or else of the fastest method.

        Raises `BoxingError` if no boxing exists, or a plugin's method includes an impossible step.
        """
        planned = plan_boxing(tensor.shape, tensor.dtype.itemsize, source, target, links)
        fitting = [spec for spec in self.specs if _fits(spec, source, target)]
        if not planned or not (fitting or self.choose):
            return planned
        methods = [*_own(tensor, source, target, links)]
        methods += [_foreign(spec, tensor, source, target) for spec in fitting]
        methods.sort(key=lambda method: method.seconds)
        specs = [method.spec for method in methods]
        name = self.choose and self.choose(source, target, tensor, specs)
        chosen = next((method for method in methods if method.spec.name == name), methods[0])
        return chosen.reshard_steps


def _fits(spec: BoxingSpec, source: TensorLayout, target: TensorLayout) -> bool:
    types = {source.placement.device_type, target.placement.device_type}
    ends = (spec.source, source.sbp), (spec.target, target.sbp)
    return types <= set(spec.device_types) and all(_matches(p, sbp) for p, sbp in ends)


def _matches(pattern: str, sbp: NdSbp) -> bool:
    """Return whether a pattern matches an SBP.

    A pattern is the text of an SBP, only its letters, or ``*``, which matches every SBP.

    >>> from flow_core.sharding.sbp import B, S
    >>> [_matches(pattern, (S(0), B)) for pattern in ("(S(0), B)", "(S, B)", "*", "S")]
    [True, True, True, False]
    """
    letters = [str(s)[0] for s in sbp]
    short = letters[0] if len(letters) == 1 else f"({', '.join(letters)})"
    return any(fnmatchcase(text, pattern) for text in (format_nd_sbp(sbp), short))


def _own(
    tensor: TensorType, source: TensorLayout, target: TensorLayout, links: LinkModel
) -> Iterator[_Method]:
    """Yield the planner's routes, named after their steps, with a number if a name is repeated."""
    counts: dict[str, int] = {}
    ends = format_nd_sbp(source.sbp), format_nd_sbp(target.sbp)
    types = source.placement.device_type, target.placement.device_type
    for route in plan_routes(tensor.shape, tensor.dtype.itemsize, source, target, links):
        name = "+".join(step.name for step in route.reshard_steps)
        counts[name] = counts.get(name, 0) + 1
        name = name if counts[name] == 1 else f"{name}#{counts[name]}"
        seconds = route.seconds + STEP_SECONDS * len(route.reshard_steps)
        cost = partial(float, seconds)
        spec = BoxingSpec(name, *ends, tuple(dict.fromkeys(types)), cost, tuple)
        yield _Method(spec, route.reshard_steps, seconds)


def _foreign(
    spec: BoxingSpec, tensor: TensorType, source: TensorLayout, target: TensorLayout
) -> _Method:
    ends = (source.placement, source.sbp), (target.placement, target.sbp)
    between = [TensorLayout(*layout) for layout in load(spec.load)(tensor, *ends)]
    stops = [source, *between, target]
    reshard_steps = tuple(_direct(spec, tensor, a, b) for a, b in pairwise(stops) if a != b)
    return _Method(spec, reshard_steps, float(load(spec.cost)(tensor, *ends)))


def _direct(
    spec: BoxingSpec, tensor: TensorType, source: TensorLayout, target: TensorLayout
) -> ReshardStep:
    step = direct(tensor.shape, source, target)
    if step is None:
        raise BoxingError(
            f"boxing a tensor of type {tensor} by {spec.name!r}",
            found=f"a reshard step from {source} to {target}",
            allowed="transitions of one reshard step: see flow_core.compiler.reshard.direct",
        )
    return step
