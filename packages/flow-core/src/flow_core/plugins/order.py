"""Order passes by stage, then by ``before`` and ``after``, then by registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from flow_core.base.errors import PluginOrderError
from flow_core.plugins.kinds import STAGES
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import PassSpec


def ordered_passes(
    passes: Sequence[PassSpec], origins: Mapping[str, Origin]
) -> tuple[PassSpec, ...]:
    """Return the passes in execution order.

    Raises:
        PluginOrderError: ``before`` and ``after`` form a cycle, or name a pass of another stage.
    """
    stages = {spec.name: spec.stage for spec in passes}
    for spec in passes:
        _check_stages(spec, stages, origins)
    ordered: list[PassSpec] = []
    for stage in STAGES:
        ordered += _topological([p for p in passes if p.stage == stage], origins)
    return tuple(ordered)


def _check_stages(spec: PassSpec, stages: Mapping[str, str], origins: Mapping[str, Origin]) -> None:
    for name in (*spec.before, *spec.after):
        if stages.get(name, spec.stage) != spec.stage:
            raise PluginOrderError(
                f"ordering pass {spec.name!r} (hook flow_register_passes of {origins[spec.name]})",
                found=f"before/after names {name!r} of stage {stages[name]!r}",
                allowed=f"passes of its own stage, {spec.stage!r}",
            )


def _successors(passes: Sequence[PassSpec]) -> dict[str, list[str]]:
    follow: dict[str, list[str]] = {spec.name: [] for spec in passes}
    for spec in passes:
        follow[spec.name] += [name for name in spec.before if name in follow]
        for name in spec.after:
            if name in follow:
                follow[name].append(spec.name)
    return follow


def _topological(passes: Sequence[PassSpec], origins: Mapping[str, Origin]) -> list[PassSpec]:
    """Sort by Kahn's algorithm; among ready passes, the one registered first comes first."""
    follow = _successors(passes)
    index = {spec.name: i for i, spec in enumerate(passes)}
    waiting = dict.fromkeys(index, 0)
    for names in follow.values():
        for name in names:
            waiting[name] += 1
    ready = [index[name] for name, count in waiting.items() if not count]
    heapify(ready)
    ordered: list[PassSpec] = []
    while ready:
        spec = passes[heappop(ready)]
        ordered.append(spec)
        for name in follow[spec.name]:
            waiting[name] -= 1
            if not waiting[name]:
                heappush(ready, index[name])
    if len(ordered) < len(passes):
        _fail_on_cycle(follow, {name for name, count in waiting.items() if count}, origins)
    return ordered


def _fail_on_cycle(
    follow: Mapping[str, Sequence[str]], stuck: set[str], origins: Mapping[str, Origin]
) -> None:
    cycle = _cycle(follow, stuck)
    owners = dict.fromkeys(str(origins[name]) for name in cycle)
    raise PluginOrderError(
        "ordering the passes (hook flow_register_passes)",
        found=f"a cycle: {' before '.join(cycle)}; registered by {', '.join(owners)}",
        allowed="before/after without cycles",
        hint=f"disable one: FLOW_DISABLE_PLUGINS={origins[cycle[0]].plugin}",
    )


def _cycle(follow: Mapping[str, Sequence[str]], stuck: set[str]) -> list[str]:
    """Find a cycle: follow predecessors until a name repeats."""
    before = {name: [p for p in stuck if name in follow[p]] for name in stuck}
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(min(before[path[-1]]))
    return path[path.index(path[-1]) :][::-1]
