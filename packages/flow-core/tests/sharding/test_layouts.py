"""Arrays over ranks against the parts and the groups of each rank."""

from itertools import product

import numpy as np
import pytest

from flow_core.sharding.layouts import Strides, TensorLayout, coordinate_arrays, same_parts
from flow_core.sharding.sbp import B, P, S, coordinates, region_shape
from flow_core.sharding.topology import Devices, Placement

GRIDS = ((1,), (5,), (2, 3), (3, 2, 2))


def layouts(hierarchy):
    size = int(np.prod(hierarchy))
    placement = Placement("gpu", tuple((0, i) for i in range(size)), hierarchy)
    for sbp in product((S(0), S(1), B, P), repeat=len(hierarchy)):
        yield TensorLayout(placement, sbp)


@pytest.mark.parametrize("hierarchy", GRIDS, ids=str)
@pytest.mark.parametrize("shape", [(7, 4), (3, 1), (0, 4)], ids=str)
def test_parts_of_all_ranks(shape, hierarchy):
    for layout in layouts(hierarchy):
        bounds, sizes = layout.bounds(shape), layout.sizes(shape)
        for rank in range(layout.placement.size):
            region = layout.region(shape, rank)
            assert sizes[rank] == np.prod(region_shape(region))
            for axis, part in enumerate(region):
                low, high = bounds.get(axis, (np.zeros(99, int), np.full(99, shape[axis])))
                assert (low[rank], high[rank]) == part


@pytest.mark.parametrize("shape", [(8, 6), (7, 5)], ids=str)
def test_layouts_with_the_same_parts(shape):
    found = [*layouts((6,)), *layouts((2, 3)), *layouts((3, 2))]
    for one, other in product(found, repeat=2):
        ranks = range(one.placement.size)
        expected = all(one.region(shape, rank) == other.region(shape, rank) for rank in ranks)
        assert same_parts(shape, one, other) == expected


@pytest.mark.parametrize("hierarchy", GRIDS, ids=str)
def test_groups_that_differ_in_some_dimensions(hierarchy):
    ranks = range(int(np.prod(hierarchy)))
    at = [coordinates(rank, hierarchy) for rank in ranks]
    assert list(zip(*(row.tolist() for row in coordinate_arrays(hierarchy)), strict=True)) == at
    for flags in product((False, True), repeat=len(hierarchy)):
        within = tuple(d for d, flag in enumerate(flags) if flag)
        expected = {}
        for rank in ranks:
            rest = tuple(c for d, c in enumerate(at[rank]) if d not in within)
            expected.setdefault(rest, []).append(rank)
        found = Strides(hierarchy, within)
        assert list(found) == list(map(tuple, expected.values()))
        assert found[:] == list(found)
        assert found[len(found) - 1] == tuple(found.array()[-1])


def test_equal_devices_are_one_object():
    one, other = (Placement("gpu", tuple((0, i) for i in range(3))) for _ in range(2))
    assert one.devices is other.devices


def test_the_hash_of_devices_is_that_of_a_tuple():
    devices = Devices([Placement.parse("gpu", "0:1").device(0)])
    assert hash(devices) == hash(tuple(devices)) == hash(devices)
    assert devices == tuple(devices)
