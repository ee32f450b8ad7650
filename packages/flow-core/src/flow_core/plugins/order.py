"""Order passes by stage, then by ``before`` and ``after``, then by registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flow_core.base.errors import PluginOrderError
from flow_core.ir.order import topological_order
from flow_core.plugins.kinds import STAGES
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import PassSpec


def ordered_passes(
    passes: Sequence[PassSpec], origins: Mapping[str, Origin]
) -> tuple[tuple[PassSpec, ...], dict[str, PluginOrderError]]:
    """Order passes, and refuse those whose ``before`` and ``after`` cannot be satisfied.

    Of the passes of a cycle, the one that was registered last is refused.

    Args:
        passes: the passes, in the order of their registration.
        origins: the plugin of each pass.

    Returns:
        The other passes in execution order, and an error for each refused pass, by name.
    """
    stages = {spec.name: spec.stage for spec in passes}
    refused = {
        spec.name: error
        for spec in passes
        for error in _stage_errors(spec, stages, origins[spec.name])
    }
    ordered: list[PassSpec] = []
    for stage in STAGES:
        known = {p.name: p for p in passes if p.stage == stage and p.name not in refused}
        ordered += _topological(known, origins, refused)
    return tuple(ordered), refused


def _stage_errors(
    spec: PassSpec, stages: Mapping[str, str], origin: Origin
) -> Iterable[PluginOrderError]:
    """Yield an error if a pass names passes of another stage."""
    named = [name for name in (*spec.before, *spec.after) if name in stages]
    other = [name for name in named if stages[name] != spec.stage]
    if other:
        yield PluginOrderError(
            f"ordering pass {spec.name!r} (hook flow_register_passes of {origin})",
            found=f"before/after names {other[0]!r} of stage {stages[other[0]]!r}",
            allowed=f"passes of its own stage, {spec.stage!r}",
        )


def _predecessors(passes: Iterable[PassSpec]) -> dict[str, set[str]]:
    known = {spec.name: spec for spec in passes}
    before = {name: {*spec.after}.intersection(known) for name, spec in known.items()}
    for name, spec in known.items():
        for later in {*spec.before}.intersection(known):
            before[later].add(name)
    return before


def order_reasons(passes: Sequence[PassSpec]) -> dict[str, tuple[str, ...]]:
    """Return, for each pass, why it does not run earlier among the passes of its stage.

    >>> order_reasons([PassSpec("a", "lower", "m:A"), PassSpec("b", "lower", "m:B", ("a",))])
    {'a': ('b is before it',), 'b': ()}
    """
    known = {spec.name for spec in passes}
    found = {
        spec.name: [f"after {name}" for name in spec.after if name in known] for spec in passes
    }
    for spec in passes:
        for name in known.intersection(spec.before):
            found[name].append(f"{spec.name} is before it")
    return {name: tuple(rows) for name, rows in found.items()}


def _topological(
    passes: dict[str, PassSpec], origins: Mapping[str, Origin], refused: dict[str, PluginOrderError]
) -> list[PassSpec]:
    """Order passes; among those that may come next, choose the one that was registered first.

    Args:
        passes: the passes of a stage by name, in the order of their registration.
        origins: the plugin of each pass.
        refused: the errors so far, to which those of refused passes are added.
    """
    while True:
        before = _predecessors(passes.values())
        position = {name: i for i, name in enumerate(passes)}
        order, blocked = topological_order(before, position)
        if not blocked:
            return [passes[name] for name in order]
        cycle = _cycle(before, blocked)
        last = max(cycle, key=position.__getitem__)
        refused[last] = _cycle_error(cycle, last, origins)
        del passes[last]


def _cycle_error(
    cycle: Sequence[str], last: str, origins: Mapping[str, Origin]
) -> PluginOrderError:
    owners = dict.fromkeys(str(origins[name]) for name in cycle)
    return PluginOrderError(
        f"ordering pass {last!r} (hook flow_register_passes of {origins[last]})",
        found=f"a cycle: {' before '.join(cycle)}; registered by {', '.join(owners)}",
        allowed="before/after without cycles",
        hint=f"disable one: FLOW_DISABLE_PLUGINS={origins[last].plugin}",
    )


def _cycle(before: Mapping[str, set[str]], blocked: Sequence[str]) -> list[str]:
    """Return a cycle among blocked passes: walk back along predecessors until a name repeats."""
    path = [min(blocked)]
    while path[-1] not in path[:-1]:
        path.append(min(before[path[-1]].intersection(blocked)))
    return path[path.index(path[-1]) :][::-1]
