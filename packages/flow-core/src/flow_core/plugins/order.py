"""Order passes by stage, then by ``before`` and ``after``, then by registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.base.errors import PluginOrderError
from flow_core.ir.order import topological_order
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


def _predecessors(passes: Sequence[PassSpec]) -> dict[str, set[str]]:
    before: dict[str, set[str]] = {spec.name: set() for spec in passes}
    for spec in passes:
        before[spec.name].update(name for name in spec.after if name in before)
        for name in spec.before:
            if name in before:
                before[name].add(spec.name)
    return before


def _topological(passes: Sequence[PassSpec], origins: Mapping[str, Origin]) -> list[PassSpec]:
    """Order passes; among those that may come next, choose the one that was registered first."""
    before = _predecessors(passes)
    order, blocked = topological_order(before, {spec.name: i for i, spec in enumerate(passes)})
    if blocked:
        raise _cycle_error(_cycle(before, blocked), origins)
    named = {spec.name: spec for spec in passes}
    return [named[name] for name in order]


def _cycle_error(cycle: Sequence[str], origins: Mapping[str, Origin]) -> PluginOrderError:
    owners = dict.fromkeys(str(origins[name]) for name in cycle)
    return PluginOrderError(
        "ordering the passes (hook flow_register_passes)",
        found=f"a cycle: {' before '.join(cycle)}; registered by {', '.join(owners)}",
        allowed="before/after without cycles",
        hint=f"disable one: FLOW_DISABLE_PLUGINS={origins[cycle[0]].plugin}",
    )


def _cycle(before: Mapping[str, set[str]], blocked: Sequence[str]) -> list[str]:
    """Return a cycle among blocked passes: walk back along predecessors until a name repeats."""
    path = [min(blocked)]
    while path[-1] not in path[:-1]:
        path.append(min(before[path[-1]].intersection(blocked)))
    return path[path.index(path[-1]) :][::-1]
