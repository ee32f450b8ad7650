"""Collectives in closed form, against messages that are sent one by one."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log2

import pytest

from flow_core.base.errors import ConfigError
from flow_core.compiler.reshard.planner import TensorLayout, plan_boxing, plan_routes
from flow_core.costs.collectives import collective_seconds
from flow_core.costs.links import Link, LinkModel
from flow_core.sharding.sbp import B, P, S
from flow_core.sharding.topology import Device, Placement

A, RATE = 1e-5, 1e9
FLAT = LinkModel((Link("wire", "all", A, RATE),), ("ring", "tree"))
INNER = Link("inside", "machine", 1e-6, 1e10)
TWO_LEVELS = LinkModel((INNER, Link("network", "all", A, RATE, uplink=RATE)))
ALL = replace(TWO_LEVELS, algorithms=("ring", "tree", "hierarchical"))


def devices(machines: int, each: int) -> list[Device]:
    return [Device("gpu", machine, i) for machine in range(machines) for i in range(each)]


def ring_all_gather(p: int, nbytes: float) -> float:
    """Send every part around a ring, one neighbor after the other, with a clock per device."""
    clock = [0.0] * p
    for _ in range(p - 1):
        sent = [clock[i] + A + nbytes / p / RATE for i in range(p)]
        clock = [max(sent[i - 1], clock[i]) for i in range(p)]
    return max(clock)


def doubling_all_gather(p: int, nbytes: float) -> float:
    """Exchange what is held with partners at distances 1, 2, 4 and so on."""
    clock, held = 0.0, 1
    while held < p:
        clock += A + held * nbytes / p / RATE
        held *= 2
    return clock


@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize("nbytes", [64, 1 << 14, 1 << 24])
def test_formulas_equal_the_sums_over_messages(p: int, nbytes: int) -> None:
    gpus = devices(1, p)
    ring = collective_seconds("all_gather", gpus, nbytes, replace(FLAT, algorithms=("ring",)))
    tree = collective_seconds("all_gather", gpus, nbytes, replace(FLAT, algorithms=("tree",)))
    assert ring == pytest.approx(ring_all_gather(p, nbytes))
    assert tree == pytest.approx(doubling_all_gather(p, nbytes))
    both = collective_seconds("all_reduce", gpus, nbytes, FLAT)
    assert both == pytest.approx(2 * doubling_all_gather(p, nbytes))


def test_hierarchy_beats_a_flat_ring_over_machines() -> None:
    gpus, nbytes = devices(4, 8), 1 << 26
    flat = collective_seconds("all_reduce", gpus, nbytes, replace(ALL, algorithms=("ring",)))
    found = collective_seconds("all_reduce", gpus, nbytes, ALL)
    inside = 2 * 7 / 8 * nbytes / INNER.bandwidth
    between = 2 * 3 / 4 * nbytes / RATE  # 8 all-reduces of an eighth each share the uplink
    assert found == pytest.approx(inside + between, rel=0.01)
    assert found < flat
    small = collective_seconds("all_reduce", gpus, 64, ALL)
    assert small == pytest.approx(2 * (log2(8) * INNER.latency + log2(4) * A), rel=0.01)


def test_collectives_that_share_an_uplink_take_longer() -> None:
    pair = [Device("gpu", 0, 0), Device("gpu", 1, 0)]
    alone = collective_seconds("all_reduce", pair, 1 << 24, ALL)
    shared = collective_seconds("all_reduce", pair, 1 << 24, ALL, flows=8)
    assert shared == pytest.approx(8 * alone, rel=0.01)
    assert collective_seconds("send_recv", pair, 8, ALL) == inf  # only the direct algorithm


def test_machines_of_different_sizes_form_one_level() -> None:
    gpus = [*devices(1, 3), Device("gpu", 1, 0)]
    ring = replace(ALL, algorithms=("ring", "hierarchical"))
    assert collective_seconds("all_gather", gpus, 4000, ring) == pytest.approx(3 * (A + 1e-6))


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 14, 1 << 18, 1 << 24])
@pytest.mark.parametrize("ids", ["0:0-7", "0:0-3,1:0-3"])
def test_the_planner_counts_latencies(ids: str, nbytes: int) -> None:
    """No route is cheaper than the chosen one, also for tensors of few bytes."""
    gpus, shape = Placement.parse("gpu", ids), (64, nbytes // 256)
    links = LinkModel()
    for source in (S(0), S(1), B, P):
        for target in (S(0), S(1), B):
            ends = TensorLayout(gpus, (source,)), TensorLayout(gpus, (target,))
            if source != target:
                routes = plan_routes(shape, 4, *ends, links)
                steps = plan_boxing(shape, 4, *ends, links)
                cost = sum(step.seconds(4, links) for step in steps)
                assert cost <= min(route.seconds for route in routes) + 1e-6


def test_few_bytes_are_gathered_and_cut_where_messages_are_slow() -> None:
    gpus = Placement.parse("gpu", [f"{m}:0" for m in range(16)])
    ends = TensorLayout(gpus, (S(0),)), TensorLayout(gpus, (S(1),))
    small = plan_boxing((64, 64), 4, *ends, LinkModel(algorithms=("direct", "ring", "tree")))
    large = plan_boxing((8192, 8192), 4, *ends, LinkModel(algorithms=("direct", "ring")))
    assert [step.name for step in large] == ["all_to_all"]
    assert sum(step.seconds(4, LinkModel()) for step in small) < 15 * 2e-5


@pytest.mark.parametrize(
    "classes",
    [
        (),
        (INNER,),
        (Link("network", "all", A, RATE), INNER),
        (INNER, INNER, Link("network", "all", A, RATE)),
    ],
)
def test_classes_go_from_the_smallest_groups_to_all_devices(classes: tuple[Link, ...]) -> None:
    with pytest.raises(ConfigError, match="from the smallest groups"):
        LinkModel(classes)


def test_groups_inside_machines() -> None:
    pairs = Link("bridge", "2 devices", 1e-6, 1e11)
    links = LinkModel((pairs, *TWO_LEVELS.classes))
    a, b, c, d = Device("gpu", 0, 0), Device("gpu", 0, 1), Device("gpu", 0, 2), Device("gpu", 1, 1)
    assert [links.between(a, x).name for x in (a, b, c, d)] == [
        "local", "bridge", "inside", "network",
    ]  # fmt: skip
