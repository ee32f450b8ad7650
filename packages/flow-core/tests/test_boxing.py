"""Boxing by brute force: every transition gives the same logical tensor, at the table's bytes."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.compiler.boxing import Hop, Layout, plan_boxing
from flow_core.sbp import B, P, S, Sbp, intersect, local_region, region_shape
from flow_core.topology import LinkModel, Placement

LINKS = LinkModel()
ONE_DIMENSION = ("0:0", "0:0-1", "0:2-4", "0:0-3", "0:1-2", "0:0-1,1:0-1")
SBPS: tuple[Sbp, ...] = (S(0), S(1), B, P)


def window(region: Any, base: Any) -> tuple[slice, ...]:
    return tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(region, base, strict=True))


def scatter(x: Any, layout: Layout, rng: Any) -> list[Any]:
    """Local parts of a tensor; partial results are random numbers that add up to it."""
    keys = sorted({layout.partial_at(r) for r in range(layout.placement.size)})
    addends = {k: rng.integers(-5, 5, x.shape).astype(float) for k in keys[1:]}
    addends[keys[0]] = x - sum(addends.values())
    whole = tuple((0, n) for n in x.shape)
    return [
        addends[layout.partial_at(r)][window(layout.region(x.shape, r), whole)].copy()
        for r in range(layout.placement.size)
    ]


def hop_over(x: Any, hop: Hop, parts: list[Any]) -> list[Any]:
    out = []
    for rank, pieces in enumerate(hop.pieces):
        region = hop.target.region(x.shape, rank)
        part = np.zeros(region_shape(region))
        for piece in pieces:
            held = hop.source.region(x.shape, piece.source)
            new = parts[piece.source][window(piece.region, held)]
            there = window(piece.region, region)
            part[there] = new if piece.first else part[there] + new
        out.append(part)
    return out


def gathered(shape: tuple[int, ...], layout: Layout, parts: list[Any]) -> Any:
    """The logical tensor; copies must agree, and together the parts must cover it."""
    whole = tuple((0, n) for n in shape)
    total = np.zeros(shape)
    groups: dict[Any, list[int]] = {}
    for rank in range(layout.placement.size):
        groups.setdefault(layout.partial_at(rank), []).append(rank)
    for ranks in groups.values():
        value = np.full(shape, np.nan)
        for rank in ranks:
            there = window(layout.region(shape, rank), whole)
            known = ~np.isnan(value[there])
            np.testing.assert_array_equal(value[there][known], parts[rank][known])
            value[there] = parts[rank]
        total += value
    return total


def layouts(placement: Placement) -> Iterator[Layout]:
    for sbp in itertools.product(SBPS, repeat=len(placement.hierarchy)):
        yield Layout(placement, sbp)


def check(x: Any, source: Layout, target: Layout, rng: Any) -> None:
    parts = scatter(x, source, rng)
    for hop in plan_boxing(x.shape, 4, source, target, LINKS):
        parts = hop_over(x, hop, parts)
    np.testing.assert_array_equal(gathered(x.shape, target, parts), x, f"{source} -> {target}")


@pytest.mark.parametrize("a", ONE_DIMENSION)
@pytest.mark.parametrize("b", ONE_DIMENSION)
def test_every_transition_in_one_dimension(a: str, b: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (7, 5)).astype(float)
    for source in layouts(Placement.parse("gpu", a.split(","))):
        for target in layouts(Placement.parse("gpu", b.split(","))):
            check(x, source, target, rng)


def test_every_transition_in_two_dimensions() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, (7, 5)).astype(float)
    grid = Placement.parse("gpu", "0:0-3", (2, 2))
    for source, target in itertools.product(layouts(grid), repeat=2):
        check(x, source, target, rng)


def test_empty_parts_are_no_trouble() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-9, 9, (2, 3)).astype(float)
    gpus = Placement.parse("gpu", "0:0-3")
    for source, target in itertools.product(layouts(gpus), repeat=2):
        check(x, source, target, rng)


def elements(source: Layout, target: Layout) -> float:
    return sum(hop.elements() for hop in plan_boxing((8, 12), 4, source, target, LINKS)) / 96


p, p1, p2 = 4, 4, 3
TABLE = {  # bytes on the wire in units of the logical size: same devices, disjoint devices
    (S(0), S(0)): (0, 1), (S(0), S(1)): ((p - 1) / p, 1), (S(0), B): (p - 1, p2),
    (S(0), P): (0, 1), (B, S(0)): (0, 1), (B, B): (0, p2), (B, P): (0, 1),
    (P, S(0)): (p - 1, p1), (P, B): (2 * (p - 1), p1 + p2 - 1), (P, P): (0, p1),
}  # fmt: skip


@pytest.mark.parametrize("pair", TABLE, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_bytes_are_those_of_the_table(pair: tuple[Sbp, Sbp]) -> None:
    gpus, others = Placement.parse("gpu", "0:0-3"), Placement.parse("gpu", "0:4-6")
    same = elements(Layout(gpus, pair[:1]), Layout(gpus, pair[1:]))
    disjoint = elements(Layout(gpus, pair[:1]), Layout(others, pair[1:]))
    assert (same, disjoint) == pytest.approx(TABLE[pair])


def test_the_planner_goes_by_reduce_scatter_and_all_gather() -> None:
    gpus = Placement.parse("gpu", "0:0-3")
    hops = plan_boxing((8, 12), 4, Layout(gpus, (P,)), Layout(gpus, (B,)), LINKS)
    assert [hop.name for hop in hops] == ["reduce_scatter", "all_gather"]


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(1, 9)),
    hierarchy=st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (3, 2)]),
    data=st.data(),
)
def test_split_regions_tile_the_tensor(
    shape: tuple[int, ...], hierarchy: tuple[int, ...], data: st.DataObject
) -> None:
    splits = st.sampled_from([S(0), S(1)])
    nd = tuple(data.draw(splits) for _ in hierarchy)
    regions = [local_region(shape, nd, hierarchy, r) for r in range(int(np.prod(hierarchy)))]
    count = np.zeros(shape, int)
    for region in regions:
        count[tuple(slice(a, b) for a, b in region)] += 1
    assert (count == 1).all()
    for a, b in itertools.combinations(regions, 2):
        assert intersect(a, b) is None
