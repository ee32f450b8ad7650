"""Pieces, computed by arithmetic, against a search over all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.shapes import Shape, balanced_range, num_elements
from flow_core.comm.described import Parts, Sparse, Tiled, places, present
from flow_core.comm.pieces import Piece, Pieces, listed_pieces, parts_between
from flow_core.comm.roles import partial_roles
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import EXTREMES, B, P, Region, S, coordinates, intersect, region_shape
from flow_core.sharding.topology import Device, Placement, devices_of


def searched(shape: Shape, source: TensorLayout, target: TensorLayout, rank: int) -> list[Piece]:
    """Return the pieces of a target rank by a search over all source ranks."""
    roles = partial_roles(source, target)
    wanted, device = target.region(shape, rank), target.placement.device(rank)
    at = coordinates(rank, target.placement.hierarchy)
    if any(at[d] for d in roles.first):
        return []
    held: dict[tuple[int, ...], dict[Region, list[int]]] = {}
    for other in range(source.placement.size):
        made_end = coordinates(other, source.placement.hierarchy)
        if all(made_end[d] == at[d] for d in roles.own):
            parts = held.setdefault(source.partial_at(other), {})
            parts.setdefault(source.region(shape, other), []).append(other)
    found = []
    for number, key in enumerate(sorted(held)):
        for region, ranks in held[key].items():
            box = intersect(region, wanted)
            if box is not None:
                found.append(Piece(nearest(source, ranks, device, rank), box, number == 0))
    return found


def nearest(source: TensorLayout, ranks: list[int], device: Device, rank: int) -> int:
    devices = devices_of(source.placement)
    own = [other for other in ranks if devices[other] == device]
    close = [other for other in ranks if devices[other].machine == device.machine]
    chosen = own or close or ranks
    return chosen[rank % len(chosen)]


PLACES = (
    ("0:0", (1,)), ("0:0-1", (2,)), ("0:0-2", (3,)), ("0:0-1,1:0-1", (2, 2)), ("0:1-2,1:0-3", (6,)),
    ("0:1-2,1:0-3", (2, 3)), ("0:1-2,1:0-3", (3, 2)), ("1:0-3,0:0-3", (8,)),
    ("0:0-3,1:0-3", (2, 2, 2)), ("0:0-3,1:0-3", (4, 2)),
)  # fmt: skip
SHAPES = ((), (1,), (6,), (7, 5), (8, 8), (0, 4), (17, 2), (3, 1, 4))


@st.composite
def transitions(draw: st.DrawFn) -> tuple[Shape, TensorLayout, TensorLayout]:
    """Draw a shape and two layouts, half of them on the same devices."""
    shape = draw(st.sampled_from(SHAPES))
    entries = [*map(S, range(len(shape))), B, P, EXTREMES[0]]
    drawn = [draw(st.sampled_from(PLACES)) for _ in range(2)]
    ends = [
        Placement.parse("gpu", ids, grid) for ids, grid in drawn[:: draw(st.sampled_from((1, 2)))]
    ]
    source, target = (
        TensorLayout(place, tuple(draw(st.sampled_from(entries)) for _ in place.hierarchy))
        for place in (ends[0], ends[-1])
    )
    return shape, source, target


@settings(max_examples=300)
@given(transitions(), st.sets(st.integers(0, 7), min_size=1, max_size=3))
def test_pieces_are_those_that_a_search_finds(
    transition: tuple[Shape, TensorLayout, TensorLayout], some: set[int]
) -> None:
    shape, source, target = transition
    pieces, others = Pieces(*transition), Pieces(*transition)
    sources = [rank for rank in some if rank < source.placement.size]
    for rank in range(target.placement.size):
        expected = searched(shape, source, target, rank)
        assert list(pieces[rank]) == expected
        taken = [piece for piece in expected if piece.source in sources]
        assert list(others.taken_from(rank, sources)) == taken
    assert list(map(list, pieces)) == [list(pieces[r]) for r in range(len(pieces))]
    listed = listed_pieces(*transition)
    assert listed is not None
    assert sorted(zip(*(part.tolist() for part in listed), strict=True)) == sorted(
        (piece.source, rank, num_elements(region_shape(piece.region)))
        for rank, row in enumerate(pieces)
        for piece in row
    )


def test_parts_of_a_balanced_split_that_overlap_an_interval() -> None:
    for size in range(12):
        for parts in range(1, 8):
            ranges = [balanced_range(size, parts, i) for i in range(parts)]
            for low in range(-1, size + 2):
                for high in range(low, size + 2):
                    expected = [i for i, (a, b) in enumerate(ranges) if max(a, low) < min(b, high)]
                    assert list(parts_between(size, parts, low, high)) == expected


def test_a_target_of_a_thousand_ranks_costs_no_list_of_ranks() -> None:
    many = Placement.parse("gpu", [f"{m}:0-7" for m in range(1250)])
    ends = TensorLayout(many, (S(0),)), TensorLayout(many, (S(1),))
    pieces = Pieces((20_001, 30_001), *ends)
    assert [p.source for p in pieces.taken_from(9_999, (0, 1, 9_999))] == [0, 1, 9_999]
    grid = Placement("gpu", many.devices, (1250, 8))
    pieces = Pieces((20_001, 8), TensorLayout(grid, (S(0), B)), TensorLayout(grid, (S(0), S(1))))
    assert [p.source for p in pieces[9_999]] == [9_999]


def test_described_sequences_equal_lists() -> None:
    devices = devices_of(Placement.parse("gpu", "0:0-3"))
    tiled, listed = Tiled(devices, 3), devices * 3
    assert tuple(tiled) == listed == tiled[:]
    assert (len(tiled), tiled[-1], tiled[2:9:3]) == (12, listed[-1], listed[2:9:3])
    wanted = devices[1], devices[3], Device("cpu", 0, 0)
    assert list(places(tiled, wanted)) == list(places(listed, wanted)) == [1, 3, 5, 7, 9, 11]
    arrays = Sparse(4, {1: "a", 3: "b"})
    assert list(arrays) == [None, "a", None, "b"]
    assert list(present(arrays)) == list(present(list(arrays))) == [(1, "a"), (3, "b")]
    for found in (tiled, arrays, Parts([], None)):  # type: ignore[arg-type]  # without members
        with pytest.raises(IndexError):
            found[len(found)]
