"""Boxing alternatives registered and selected by plugins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.compiler.reshard.direct import direct
from flow_core.compiler.reshard.planner import BoxingError, TensorLayout, plan_routes
from flow_core.compiler.reshard.plugin_steps import BoxingMethods
from flow_core.costs.links import LinkModel
from flow_core.ir.graph import tensor_type
from flow_core.plugins.host import load_plugins
from flow_core.plugins.specs import BoxingSpec
from flow_core.sharding.sbp import B, P, S, Sbp
from flow_core.sharding.topology import Placement

GPUS = Placement.parse("gpu", "0:0-3")
TYPE = tensor_type((8, 12), float32)


def plugin(**hooks: Any) -> ModuleType:
    module = ModuleType("rings")
    vars(module).update(hooks, FLOW_PLUGIN_API="1.0")
    return module


def names(methods: BoxingMethods, source: Sbp, target: Sbp) -> list[str]:
    reshard_steps = methods.reshard_steps(
        TYPE, TensorLayout(GPUS, (source,)), TensorLayout(GPUS, (target,)), LinkModel()
    )
    return [hop.name for hop in reshard_steps]


def by_way_of(*stops: Sbp) -> Any:
    return lambda tensor, source, target: [(source[0], (stop,)) for stop in stops]


def methods(*specs: BoxingSpec, choose: Any = None) -> BoxingMethods:
    hooks = {"flow_register_boxing": lambda: specs}
    if choose is not None:
        hooks["flow_choose_boxing"] = choose
    return BoxingMethods.of(load_plugins(Settings(plugins=None), [plugin(**hooks)]))


def spec(seconds: float, *stops: Sbp, source: str = "P", target: str = "B") -> BoxingSpec:
    cost = lambda tensor, source, target: seconds  # noqa: E731
    return BoxingSpec("rings.way", source, target, ("gpu",), cost, by_way_of(*stops))


def test_cheaper_alternative_is_selected() -> None:
    assert names(methods(spec(0.0, S(1))), P, B) == ["reduce_scatter", "all_gather"]
    assert names(methods(spec(1.0, S(1))), P, B) == ["all_reduce"]


def test_alternatives_apply_to_their_sbp_and_devices() -> None:
    found = methods(spec(0.0, S(1), source="S(0)"))
    assert names(found, P, B) == ["all_reduce"]
    assert names(found, S(0), B) == ["all_to_all", "all_gather"]
    elsewhere = methods(BoxingSpec("rings.cpu", "P", "B", ("cpu",), float, by_way_of(S(1))))
    assert names(elsewhere, P, B) == ["all_reduce"]


def test_plugins_select_among_all_alternatives() -> None:
    asked: list[list[str]] = []

    def choose(candidates: Sequence[BoxingSpec], tensor: Any) -> str:
        assert tensor == TYPE
        asked.append([c.name for c in candidates])
        return "reduce_scatter+all_gather"

    found = methods(spec(1.0, S(1)), choose=choose)
    assert names(found, P, B) == ["reduce_scatter", "all_gather"]
    assert asked[0][0] == "all_reduce"
    assert asked[0][-1] == "rings.way"
    assert len(set(asked[0])) == len(asked[0])
    assert names(methods(choose=lambda: None), P, B) == ["all_reduce"]


def test_plugins_are_not_called_without_movement() -> None:
    assert names(methods(choose=lambda: "wrong"), S(0), S(0)) == []


def test_alternative_must_consist_of_steps() -> None:
    others = Placement.parse("gpu", "0:4-5"), (B,)
    bad = BoxingSpec("rings.way", "P", "B", ("gpu",), lambda *_: 0.0, lambda *_: [others])
    with pytest.raises(BoxingError, match=r"rings\.way"):
        names(methods(bad), P, B)


SHAPE = (1 << 14, 1 << 14)  # bytes, not the latency of each message, determine the time


def test_a_single_step_is_chosen_only_if_it_is_the_cheapest() -> None:
    """With two axes, slices and exchanges along one axis may cost half of one large exchange."""
    grid = Placement("gpu", GPUS.devices, (2, 2))
    layouts = [TensorLayout(grid, pair) for pair in itertools.product((S(0), S(1), B, P), repeat=2)]
    several = 0
    for source, target in itertools.permutations(layouts, 2):
        chosen, *others = plan_routes(SHAPE, 4, source, target, LinkModel())
        least = min((o.seconds for o in others), default=chosen.seconds)
        assert chosen.seconds <= least * 1.001
        several += len(chosen.reshard_steps) > 1
        step = direct(SHAPE, source, target)
        if step is not None:
            assert chosen.seconds <= step.seconds(4, LinkModel()) * 1.001
    assert several > 20
