"""Traffic in closed form against the transfers of every piece."""

from itertools import product

import numpy as np
import pytest

from flow_core.compiler.reshard import steps
from flow_core.compiler.reshard.direct import direct
from flow_core.compiler.reshard.steps import busiest, even_form, groups_of
from flow_core.costs.links import Link, LinkModel
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import EXTREMES, B, P, S
from flow_core.sharding.topology import Placement

LINKS = LinkModel()
PLACES = ("0:0-1", "0:0-4", "0:0-2,1:0-1,2:0", "0:0-2,1:0-3", "0:0,1:0,0:1,1:1")
SHAPES = ((12, 7), (5, 5), (3, 6), (1, 9), (2, 2), (0, 4))
PAIRS = [
    (source, target)
    for source, target in product((S(0), S(1), B, P), repeat=2)
    if source != target and not (source == P and target == B)
]


@pytest.mark.representative(
    r"\((5, 5|0, 4)\)-0:0-2,1:0-1,2:0\]",
    "each pair of layouts: an uneven split over uneven machines, and an empty tensor",
)
@pytest.mark.parametrize("ids", PLACES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_closed_forms_equal_the_sum_over_pieces(ids, shape, source, target, monkeypatch):
    gpus = Placement.parse("gpu", ids)
    step = direct(shape, TensorLayout(gpus, (source,)), TensorLayout(gpus, (target,)))
    assert step is not None
    found = described(step)
    check(step)
    monkeypatch.setattr(steps, "even_form", lambda _: "")
    monkeypatch.setattr(steps, "own_parts", lambda *_: None)
    assert found == described(step)


def described(step):
    """Return the groups of a step and what is known about them, computed anew."""
    groups = groups_of.__wrapped__(step)
    assert list(groups.labels()) == [group.name for group in groups]
    members = [(group.sources, group.targets) for group in groups]
    for number, group in enumerate(groups):
        assert tuple(np.flatnonzero(groups.sources == number)) == tuple(sorted(group.sources))
        assert tuple(np.flatnonzero(groups.targets == number)) == tuple(sorted(group.targets))
    if groups.is_single:
        assert sum(len({*a, *b}) > 1 for a, b in members) < 2
    return list(groups), list(groups.names()), groups.filled.tolist()


@pytest.mark.representative(
    r"\((5, 5|0, 4)\)\]", "each pair of placements, with an uneven split and an empty tensor"
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    list(product(("0:0", "0:1", "0:1-3,1:0-1", "2:0-3", "1:1,2:3,3:0-1", "3:0,0:2,4:1"), repeat=2)),
)
def test_closed_forms_between_placements(a, b, shape, monkeypatch):
    for source, target, kind in product((S(0), S(1), B, P), (S(0), S(1), B, P), ("gpu", "cpu")):
        places = Placement.parse("gpu", a.split(",")), Placement.parse(kind, b.split(","))
        ends = TensorLayout(places[0], (source,)), TensorLayout(places[1], (target,))
        step = None if ends[0] == ends[1] else direct(shape, *ends)
        if step is not None:
            check(step)
            found = described(step)
            with monkeypatch.context() as patch:
                for closed in ("rooted", "passed_on"):
                    patch.setattr(steps, closed, lambda *_: None)
                assert found == described(step), step


GRIDS = {
    "same": ("0:0-3,1:0-1", (2, 3), "0:0-3,1:0-1", (2, 3)),
    "from one device": ("0:1", (1,), "0:0-3,1:0-1", (3, 2)),
    "from one other device": ("2:0", (1,), "0:0-3", (2, 2)),
}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shape", [(7, 4), (2, 1)], ids=str)
def test_groups_in_closed_form_on_grids(grid, shape, monkeypatch):
    ids, from_grid, other_ids, to_grid = GRIDS[grid]
    one = Placement.parse("gpu", ids.split(","), from_grid)
    other = Placement.parse("gpu", other_ids.split(","), to_grid)
    compared = 0
    entries = S(0), S(1), B, P, EXTREMES[0]
    for source, target in product(
        product(entries, repeat=len(from_grid)), product(entries, repeat=2)
    ):
        ends = TensorLayout(one, source), TensorLayout(other, target)
        step = None if ends[0] == ends[1] else direct(shape, *ends)
        if step is None or step.groups:
            continue
        found = described(step)
        with monkeypatch.context() as patch:
            for closed in ("own_parts", "rooted", "passed_on"):
                patch.setattr(steps, closed, lambda *_: None)
            assert found == described(step), step
        compared += 1
    assert compared > 50


def check(step):
    """Check the closed forms of the traffic against the sum over all pieces."""
    assert step.elements() == sum(n for _, _, n in step.transfers())
    out, into = {}, {}
    for sender, receiver, n in step.transfers():
        seconds = LINKS.between(sender, receiver).seconds(4 * n)
        out[sender] = out.get(sender, 0) + seconds
        into[receiver] = into.get(receiver, 0) + seconds
    expected = max(out.values(), default=0), max(into.values(), default=0)
    assert busiest(step, 4, LINKS) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ids", PLACES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_reduce_in_closed_form_equals_the_sum_over_transfers(ids, shape):
    gpus = Placement.parse("gpu", ids)
    step = direct(shape, TensorLayout(gpus, (P,)), TensorLayout(gpus, (B,)))
    assert step is not None
    check(step)


def test_traffic_of_a_thousand_devices_needs_no_pieces():
    gpus = Placement.parse("gpu", [f"{m}:0-7" for m in range(128)])
    for source, target in ((S(0), B), (P, S(0)), (S(0), S(1))):
        step = direct((4096, 4096), TensorLayout(gpus, (source,)), TensorLayout(gpus, (target,)))
        assert step is not None
        assert even_form(step) == step.name
        assert step.elements() > 0
        assert step.seconds(4, LINKS) > 0
        assert not step.pieces._known  # type: ignore[attr-defined]  # no piece was computed


STAGES = [Placement.parse("gpu", [f"{m}:0-7" for m in range(a, a + 64)]) for a in (0, 64)]
PASSED_ON = ((S(0), S(0)), (B, B), (B, S(1)), (B, P))
"""Layouts between which each device of the next stage takes its part from one device."""


def test_traffic_between_stages_needs_no_pieces():
    for source, target in PASSED_ON:
        ends = TensorLayout(STAGES[0], (source,)), TensorLayout(STAGES[1], (target,))
        step = direct((4096, 4096), *ends)
        assert step is not None
        assert step.elements() > 0
        assert step.seconds(4, LINKS) > 0
        assert len(groups_of(step)) > 0
        assert step.pieces._made is None  # type: ignore[attr-defined]  # none was asked for


@pytest.mark.parametrize(("source", "target"), PASSED_ON, ids=str)
@pytest.mark.parametrize("uplink", [0.0, 3e9, 1e12])
def test_listed_transfers_share_uplinks(source, target, uplink):
    places = Placement.parse("gpu", ["0:0-2", "1:0-1"]), Placement.parse("gpu", ["1:1-3", "2:0-1"])
    network = Link("network", "all", 2e-5, 1.25e9, uplink)
    links = LinkModel((Link("machine", "machine", 2e-6, 1e10), network))
    ends = TensorLayout(places[0], (source,)), TensorLayout(places[1], (target,))
    step = direct((6, 7), *ends)
    assert step is not None
    moves = list(step.transfers())
    found = []
    for end in (0, 1):
        devices = list(dict.fromkeys(move[end] for move in moves))
        flows = dict(zip(devices, links.flows(devices), strict=True))
        times = dict.fromkeys(devices, 0.0)
        for *pair, n in moves:
            level = links.level(*pair)
            times[pair[end]] += links.classes[level].seconds(4 * n, flows[pair[end]][level])
        found.append(max(times.values(), default=0.0))
    assert busiest(step, 4, links) == pytest.approx(tuple(found), rel=1e-12)
