"""Boxing by brute force: each transition preserves the tensor and sends the predicted bytes."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opaque_devices import OpaqueArray, OpaqueDriver
from suite import work

from flow_core.base.dtypes import float64
from flow_core.builtin.in_process import InProcessComm, staged
from flow_core.comm.exchange import COMBINE, LOCAL, DevicePair, Exchange, make_exchange
from flow_core.compiler.distribute.collectives import exchange_op
from flow_core.compiler.reshard.planner import (
    ReshardStep,
    TensorLayout,
    groups_of,
    plan_boxing,
    plan_routes,
)
from flow_core.compiler.reshard.steps import is_in_place
from flow_core.costs.links import LinkModel
from flow_core.device import Launch
from flow_core.ir.graph import Value, tensor_type
from flow_core.plan import COLLECTIVES
from flow_core.sharding.sbp import (
    B,
    Broadcast,
    P,
    Partial,
    S,
    Sbp,
    Split,
    intersect,
    local_region,
)
from flow_core.sharding.topology import Device, Placement

LINKS = LinkModel()
MAX, MIN = Partial("max"), Partial("min")
SBPS: tuple[Sbp, ...] = (S(0), S(1), B, P, MAX)
ONE_DIMENSION = ("0:0", "0:0-1", "0:2-4", "0:0-3", "0:1-2", "0:0-1,1:0-1")


def placed(text: str) -> Placement:
    """Parse "0:0-3", "cpu 0:0-1" or "0:0-3 2x2"."""
    words = text.split()
    kind = words.pop(0) if words[0] in ("cpu", "gpu") else "gpu"
    hierarchy = [int(n) for n in words[1].split("x")] if len(words) > 1 else None
    return Placement.parse(kind, words[0].split(","), hierarchy)


def layouts(placement: Placement, sbps: Sequence[Sbp] = SBPS) -> Iterator[TensorLayout]:
    for sbp in itertools.product(sbps, repeat=len(placement.hierarchy)):
        yield TensorLayout(placement, sbp)


def window(region: Any) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in region)


def addends(x: Any, op: str, n: int, rng: Any) -> list[Any]:
    """Return tensors that reduce to ``x``."""
    others = [rng.integers(-5, 5, x.shape).astype(float) for _ in range(n - 1)]
    if op == "sum":
        return [x - sum(others), *others]
    owner = rng.integers(0, n, x.shape)
    worse = COMBINE["min" if op == "max" else "max"]
    return [np.where(owner == i, x, worse(x, o)) for i, o in enumerate([x, *others])]


def scatter(x: Any, layout: TensorLayout, rng: Any) -> list[Any]:
    """Return the local parts of a tensor."""
    pairs = list(zip(layout.sbp, layout.placement.hierarchy, strict=True))
    parts = spread(x, pairs, rng)
    return [part[window(layout.region(x.shape, r))].copy() for r, part in enumerate(parts)]


def spread(x: Any, pairs: list[tuple[Sbp, int]], rng: Any) -> list[Any]:
    if not pairs:
        return [x]
    (sbp, n), *inner = pairs
    if isinstance(sbp, Broadcast):
        return spread(x, inner, rng) * n
    wholes = addends(x, sbp.op, n, rng) if isinstance(sbp, Partial) else [x] * n
    return [part for whole in wholes for part in spread(whole, inner, rng)]


def gathered(shape: tuple[int, ...], layout: TensorLayout, parts: list[Any]) -> Any:
    """Return the logical tensor; check that copies agree."""
    wholes = []
    for rank, part in enumerate(parts):
        whole = np.full(shape, np.nan)
        whole[window(layout.region(shape, rank))] = part
        wholes.append(whole)
    return joined(wholes, list(zip(layout.sbp, layout.placement.hierarchy, strict=True)))


def joined(parts: list[Any], pairs: list[tuple[Sbp, int]]) -> Any:
    if not pairs:
        return parts[0]
    (sbp, n), *inner = pairs
    size = len(parts) // n
    groups = [parts[i : i + size] for i in range(0, len(parts), size)]
    if isinstance(sbp, Broadcast):
        for group in groups[1:]:
            np.testing.assert_array_equal(group, groups[0])
        return joined(groups[0], inner)
    wholes = [joined(group, inner) for group in groups]
    if isinstance(sbp, Partial):
        return reduce(COMBINE[sbp.op], wholes)
    return reduce(lambda a, b: np.where(np.isnan(a), b, a), wholes)


class OpaqueComm:
    """The staged comm between arrays that the host cannot read, which hold host arrays' values."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.comm = staged(devices)
        self.comm.attach(OpaqueDriver)
        self.sent = self.comm.sent

    def bind(self, exchange: Exchange, given: Sequence[Any], made: Sequence[Any]) -> list[Launch]:
        inputs, outputs = (
            [self.on(d, x) for d, x in zip(devices, arrays, strict=True)]
            for devices, arrays in ((exchange.senders, given), (exchange.receivers, made))
        )
        return [*self.comm.bind(exchange, inputs, outputs)]

    def on(self, device: Device, array: Any) -> Any:
        return array if device.type == "cpu" else OpaqueArray(array)


def run_hop(comm: InProcessComm | OpaqueComm, hop: ReshardStep, parts: list[Any]) -> list[Any]:
    """Run a hop as a plan does: bind each group's exchange to arrays and launch it."""
    out: dict[int, Any] = {
        rank: parts[hop.pieces[rank][0].source]
        for rank in range(len(hop.pieces))
        if is_in_place(hop, rank)
    }
    type_ = tensor_type(hop.shape, float64)
    for part in groups_of(hop):
        assert part.name in COLLECTIVES
        assert part.crosses != (part.name in LOCAL)
        values = {r: Value("x", r) for r in range(len(parts))}
        op, types, _ = exchange_op(hop, part, type_, values)
        given = [parts[v.index] for v in op.inputs]
        made = [np.full(t.shape, np.nan) for t in types]
        exchange = make_exchange(
            "x/box",
            op.attrs,
            tuple(tensor_type(a.shape, float64) for a in given),
            types,
            tuple(hop.source.placement.device(v.index) for v in op.inputs),
            tuple(op.placement.device(i) for i in range(op.placement.size)),
        )
        for launch in comm.bind(exchange, given, made):
            launch()
        out.update(zip(part.targets, made, strict=True))
    return [out[rank] for rank in range(hop.target.placement.size)]


def check(
    x: Any,
    source: TensorLayout,
    target: TensorLayout,
    rng: Any,
    make: Callable[[Sequence[Device]], InProcessComm | OpaqueComm] = InProcessComm,
) -> None:
    """Check the result of a transition and its traffic on each link."""
    parts = scatter(x, source, rng)
    devices = [p.device(r) for p in (source.placement, target.placement) for r in range(p.size)]
    comm = make(list(dict.fromkeys(devices)))
    predicted: Counter[DevicePair] = Counter()
    for hop in plan_boxing(x.shape, 8, source, target, LINKS):
        parts = run_hop(comm, hop, parts)
        for sender, receiver, n in hop.transfers():
            predicted[sender, receiver] += n * 8
    np.testing.assert_array_equal(gathered(x.shape, target, parts), x, f"{source} -> {target}")
    assert comm.sent() == +predicted, f"{source} -> {target}"


def tensor(shape: tuple[int, ...], rng: Any) -> Any:
    return rng.integers(-9, 9, shape).astype(float)


@pytest.mark.representative(
    r"\[(0:0-3-0:0-3|0:2-4-0:0-3|0:0-1,1:0-1-0:0|cpu 0:0-2-0:2-4)\]",
    "the same devices, some of them, those of another machine, and the host",
)
@pytest.mark.parametrize("a", ONE_DIMENSION)
@pytest.mark.parametrize("b", [*ONE_DIMENSION, "cpu 0:0-2"])
def test_every_transition_in_one_dimension(a: str, b: str) -> None:
    rng = np.random.default_rng(0)
    x = tensor((7, 5), rng)
    for source, target in itertools.product(layouts(placed(a)), layouts(placed(b))):
        check(x, source, target, rng)
        if b.startswith("cpu"):
            check(x, target, source, rng)


@pytest.mark.slow
@pytest.mark.representative(
    r"\[0:0-3\]", "its targets are the same devices, some of them, and the host"
)
@pytest.mark.parametrize("a", ONE_DIMENSION)
def test_every_transition_between_devices_that_the_host_cannot_read(a: str) -> None:
    rng = np.random.default_rng(0)
    for b, shape in itertools.product(("0:0-3", "0:2-4", "cpu 0:0-2"), ((7, 5), (2, 3), (0, 3))):
        for one, other in itertools.product(layouts(placed(a)), layouts(placed(b))):
            for source, target in ((one, other), (other, one)):
                check(tensor(shape, rng), source, target, rng, OpaqueComm)


@pytest.mark.slow
def test_every_transition_in_two_dimensions_between_such_devices() -> None:
    rng = np.random.default_rng(1)
    grid, sbps = placed("0:0-3 2x2"), (S(0), S(1), B, P)
    for target in (*layouts(grid, sbps), *layouts(placed("cpu 0:0-3 2x2"), sbps)):
        for source in layouts(grid, sbps):
            check(tensor((7, 5), rng), source, target, rng, OpaqueComm)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1, 1)])
def test_empty_parts(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = tensor(shape, rng)
    others = placed("0:2-4")
    for source in layouts(placed("0:0-3")):
        for target in (*layouts(placed("0:0-3")), *layouts(others)):
            check(x, source, target, rng)


def test_scalars() -> None:
    rng = np.random.default_rng(3)
    sbps = (B, P, MAX, MIN)
    for b in ("0:0-3", "0:2-4", "cpu 0:0-1"):
        for source in layouts(placed("0:0-3"), sbps):
            for target in layouts(placed(b), sbps):
                check(tensor((), rng), source, target, rng)


def test_every_transition_in_two_dimensions() -> None:
    rng = np.random.default_rng(1)
    x = tensor((7, 5), rng)
    grid = placed("0:0-3 2x2")
    for source, target in itertools.product(layouts(grid, (S(0), S(1), B, P)), repeat=2):
        check(x, source, target, rng)


SHAPES = (
    "0:0-3", "0:0-3 2x2", "0:0-5 2x3", "0:0-5 3x2", "0:2-7 2x3", "0:0-1,1:0-1 2x2",
    "cpu 0:0-3 2x2", "0:0-7 2x2x2", "0:0-3 1x4", "0:0",
)  # fmt: skip


@settings(max_examples=30)
@given(data=st.data())
def test_any_transition(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = tensor(data.draw(st.sampled_from([(7, 5), (8, 8), (6,), (3, 4, 2), (5, 1)])), rng)
    sbps = [S(axis) for axis in range(x.ndim)] + [B, P, MAX, MIN]
    source, target = (
        TensorLayout(
            placement, tuple(data.draw(st.sampled_from(sbps)) for _ in placement.hierarchy)
        )
        for placement in (placed(data.draw(st.sampled_from(SHAPES))) for _ in range(2))
    )
    check(x, source, target, rng)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("b", SHAPES)
@pytest.mark.parametrize("a", SHAPES[:7])
def test_every_transition_of_every_hierarchy(a: str, b: str) -> None:
    rng = np.random.default_rng(4)
    x = tensor((7, 5), rng)
    sbps = (S(0), S(1), B, P, MAX)
    for source in layouts(placed(a), sbps):
        for target in layouts(placed(b), sbps[: 4 if "x2x" in b else 5]):
            check(x, source, target, rng)


def test_change_of_hierarchy_on_the_same_devices_moves_nothing() -> None:
    flat, grid = placed("0:0-3"), placed("0:0-3 2x2")
    for a, b in (((P,), (P, P)), ((B,), (B, B)), ((S(0),), (S(0), S(0))), ((MAX,), (MAX, MAX))):
        assert plan_boxing((8, 4), 4, TensorLayout(flat, a), TensorLayout(grid, b), LINKS) == ()
    reshard_steps = plan_boxing(
        (8, 4), 4, TensorLayout(grid, (P, B)), TensorLayout(flat, (P,)), LINKS
    )
    assert sum(hop.elements() for hop in reshard_steps) == 0


# --------------------------------------------------------------------------- traffic and names


def elements(source: TensorLayout, target: TensorLayout) -> float:
    steps = plan_boxing((8, 12), 4, source, target, LINKS.without_latency())
    return sum(hop.elements() for hop in steps) / 96


p, p1, p2 = 4, 4, 3
TABLE = {  # bytes on the wire in units of the logical size: same devices, disjoint devices
    (S(0), S(0)): (0, 1), (S(0), S(1)): ((p - 1) / p, 1), (S(0), B): (p - 1, p2),
    (S(0), P): (0, 1), (B, S(0)): (0, 1), (B, B): (0, p2), (B, P): (0, 1),
    (P, S(0)): (p - 1, p1), (P, B): (2 * (p - 1), p1 + p2 - 1), (P, P): (0, p1),
    (S(0), MAX): (0, 1), (B, MAX): (0, 1), (MAX, S(0)): (p - 1, p1), (MAX, MAX): (0, p1),
    (MAX, B): (2 * (p - 1), p1 + p2 - 1),
}  # fmt: skip


@pytest.mark.parametrize("others", ["0:4-6", "cpu 0:0-2"])
@pytest.mark.parametrize("pair", TABLE, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_traffic_matches_the_table(pair: tuple[Sbp, Sbp], others: str) -> None:
    gpus = placed("0:0-3")
    same = elements(TensorLayout(gpus, pair[:1]), TensorLayout(gpus, pair[1:]))
    disjoint = elements(TensorLayout(gpus, pair[:1]), TensorLayout(placed(others), pair[1:]))
    assert (same, disjoint) == pytest.approx(TABLE[pair])


NAMES = (  # from, to, hops
    ("0:0-3", S(0), "0:0-3", B, "all_gather"),
    ("0:0-3", S(0), "0:0-3", S(1), "all_to_all"),
    ("0:0-3", P, "0:0-3", S(0), "reduce_scatter"),
    ("0:0-3", P, "0:0-3", B, "all_reduce"),
    ("0:0-3", B, "0:0-3", S(0), "slice"),
    ("0:0-3", S(0), "0:0-3", P, "zero_pad"),
    ("0:0-3", P, "0:4", B, "reduce"),
    ("0:0-3", S(0), "0:0", B, "gather"),
    ("0:0", B, "0:1", B, "send_recv"),
    ("0:0", B, "0:1-3", B, "broadcast"),
    ("0:0", B, "0:0-3", S(0), "scatter"),
    ("0:0-3", B, "cpu 0:0", B, "copy_d2h"),
    ("cpu 0:0", B, "0:0-3", S(0), "copy_h2d"),
    ("cpu 0:0", B, "0:0", B, "copy_h2d"),
)  # fmt: skip


@pytest.mark.parametrize("case", NAMES, ids=lambda c: f"{c[0]} {c[1]} - {c[2]} {c[3]}")
def test_hops_are_named_after_collectives(case: tuple[str, Sbp, str, Sbp, str]) -> None:
    a, source, b, target, names = case
    reshard_steps = plan_boxing(
        (8, 12), 4, TensorLayout(placed(a), (source,)), TensorLayout(placed(b), (target,)), LINKS
    )
    assert " ".join(hop.name for hop in reshard_steps) == names


def test_grid_groups_exchange_internally() -> None:
    grid = placed("0:0-3 2x2")
    source, target = TensorLayout(grid, (P, S(0))), TensorLayout(grid, (B, S(0)))
    (hop,) = plan_boxing((8, 12), 4, source, target, LINKS)
    assert [(part.name, part.sources) for part in groups_of(hop)] == [
        ("all_reduce", (0, 2)),
        ("all_reduce", (1, 3)),
    ]


def test_reduction_is_hierarchical_within_then_between_machines() -> None:
    grid = placed("0:0-1,1:0-1 2x2")
    reshard_steps = plan_boxing(
        (64, 1024), 4, TensorLayout(grid, (P, P)), TensorLayout(grid, (B, B)), LINKS
    )
    assert [hop.name for hop in reshard_steps] == ["reduce_scatter", "all_reduce", "all_gather"]


def test_alternative_plans_cost_more() -> None:
    gpus = placed("0:0-3")
    routes = plan_routes((8, 12), 4, TensorLayout(gpus, (P,)), TensorLayout(gpus, (B,)), LINKS)
    assert [[hop.name for hop in route.reshard_steps] for route in routes[:2]] == [
        ["all_reduce"],
        ["reduce_scatter", "all_gather"],
    ]
    assert len({route.reshard_steps for route in routes}) == len(routes) > 2
    assert [r.seconds for r in routes] == pytest.approx(sorted(r.seconds for r in routes))


def test_planning_takes_little_work() -> None:
    gpus = placed("0:0-7")
    pairs = list(itertools.permutations(layouts(gpus, (S(0), S(1), B, P)), 2))

    def plan_all() -> None:
        for source, target in pairs:
            plan_boxing((640, 512), 4, source, target, LINKS)

    assert work.calls(plan_all) < 1_500 * len(pairs)  # half a millisecond for each
    assert work.calls(plan_all) < 100 * len(pairs)  # which are kept


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(1, 9)),
    hierarchy=st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (3, 2)]),
    data=st.data(),
)
def test_split_regions_tile_the_tensor(
    shape: tuple[int, ...], hierarchy: tuple[int, ...], data: st.DataObject
) -> None:
    splits = st.sampled_from([S(0), S(1)])
    nd: tuple[Split, ...] = tuple(data.draw(splits) for _ in hierarchy)
    regions = [local_region(shape, nd, hierarchy, r) for r in range(int(np.prod(hierarchy)))]
    count = np.zeros(shape, int)
    for region in regions:
        count[tuple(slice(a, b) for a, b in region)] += 1
    assert (count == 1).all()
    for a, b in itertools.combinations(regions, 2):
        assert intersect(a, b) is None
