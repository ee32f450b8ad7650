"""Gather plans: every exchange as boxes that are copied or combined."""

from __future__ import annotations

import numpy as np

from flow_core.base.dtypes import float32
from flow_core.comm.exchange import Block, Exchange
from flow_core.comm.gathers import BoxRef, GatherPlan, gather_plans, reductions
from flow_core.device import strided
from flow_core.ir.graph import tensor_type

DEVICES = ("cpu:0:0", "cpu:0:1")


def exchange(collective: str, size: int, blocks: tuple[Block, ...] = ()) -> Exchange:
    types = (tensor_type((size,), float32),) * 2
    return Exchange("x", collective, "sum", types, types, DEVICES, DEVICES, blocks)


def test_blocks_of_one_box_form_one_gather() -> None:
    found = exchange("reduce", 4, (Block(0, (0,), 1, (2,), (2,)), Block(1, (2,), 1, (2,), (2,))))
    parts = BoxRef(False, 0, (0,), (2,)), BoxRef(False, 1, (2,), (2,))
    assert [*gather_plans(found)] == [GatherPlan(BoxRef(True, 1, (2,), (2,)), parts)]


def test_box_without_an_initial_copy_includes_itself() -> None:
    (plan,) = gather_plans(exchange("reduce", 4, (Block(0, (0,), 1, (0,), (4,), False),)))
    assert plan.parts == (plan.target, BoxRef(False, 0, (0,), (4,)))


def test_all_reduce_covers_each_output_once_in_rank_order() -> None:
    found = exchange("all_reduce", 5)
    for reduction in reductions(found):
        assert [part.index for part in reduction.combine.parts] == [0, 1]
        assert all(copy.parts == (reduction.combine.target,) for copy in reduction.copies)
    ranges = {i: list[int]() for i in (0, 1)}
    for plan in gather_plans(found):
        start, size = plan.target.start[0], plan.target.shape[0]
        ranges[plan.target.index] += range(start, start + size)
    assert all(sorted(covered) == [*range(5)] for covered in ranges.values())


def test_views_of_host_and_device_arrays_select_the_same_box() -> None:
    array = np.arange(12).reshape(3, 4)
    box, flat = BoxRef(False, 0, (1, 2), (2, 2)), BoxRef(False, 0, (5,), (3,), is_flat=True)
    assert box.view(array).tolist() == [[6, 7], [10, 11]]
    assert flat.view(array).tolist() == [5, 6, 7]
    for ref in (box, flat):
        assert ref.view(strided(array)).offset == ref.view(array).reshape(-1)[0]
    assert BoxRef(False, 0, (), ()).view(np.zeros(())).base is not None
