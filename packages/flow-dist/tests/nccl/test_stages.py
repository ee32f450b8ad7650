"""All ranks choose the same collective from their own blocks, if an exchange is regular."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import pytest

from flow_core.base.dtypes import float32
from flow_core.base.shapes import Shape
from flow_core.comm.described import Sparse, is_regular
from flow_core.comm.exchange import Exchange, exchange_of
from flow_core.compiler.distribute.collectives import exchange_op
from flow_core.compiler.reshard.direct import direct
from flow_core.compiler.reshard.steps import groups_of
from flow_core.ir.graph import Value, tensor_type
from flow_core.plan import Task
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import B, P, S
from flow_core.sharding.topology import Device, Devices, Placement
from flow_dist.nccl import stages
from flow_dist.phases import phases_of, routes


class Row:
    """An array of which only the place matters."""

    size, nbytes = 1, 4

    def __getitem__(self, window: object) -> Row:
        return self


@pytest.fixture(autouse=True)
def without_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(member: Any, primitive: str, device: Device, *arguments: Any, **_: Any) -> stages.Call:
        _, _, *numbers = arguments
        return stages.Call(primitive, device, tuple(map(int, numbers)))

    monkeypatch.setattr(stages, "_call", call)
    for packing in ("_pack", "_unpack"):
        monkeypatch.setattr(stages, packing, lambda *_: Row())


def tasks(shape: Shape, hierarchy: tuple[int, ...]) -> Iterator[Task]:
    """Yield the described exchanges between all layouts of a grid over two machines."""
    size = prod(hierarchy)
    ids = [f"0:0-{size // 2 - 1}", f"1:0-{size - size // 2 - 1}"]
    grid, flat = Placement.parse("gpu", ids, hierarchy), Placement.parse("gpu", ids)
    every = [TensorLayout(grid, sbp) for sbp in product((S(0), S(1), B, P), repeat=len(hierarchy))]
    every += [TensorLayout(flat, (sbp,)) for sbp in (S(0), S(1), B)]
    for source, target in product(every, repeat=2):
        step = direct(shape, source, target) if source != target else None
        for group in groups_of(step) if step else ():
            if step and group.crosses:
                values = {rank: Value("x", rank) for rank in range(size)}
                kept = [grid.device(rank) for rank in range(size)]
                op, *_ = exchange_op(step, group, tensor_type(shape, float32), values, kept)
                yield Task("x", "boxing", op.attrs, (), (), None, kept[0], "boxing")


def chosen(exchange: Exchange, here: list[Device]) -> dict[Device, Any] | None:
    """Return the calls of some devices; None if no collective fits."""
    given, made = (
        {i: Row() for i, device in enumerate(end) if device in here}
        for end in (exchange.senders, exchange.receivers)
    )
    devices = Devices(sorted(exchange.devices))
    site = stages.Site(devices, dict.fromkeys(here), given, made, lambda *_: None)  # type: ignore[arg-type]
    found = stages._native(exchange, site)
    if found is None:
        return None
    return {device: [call for call in found[0].calls if call.device == device] for device in here}


QUICK = [((4, 4), (2, 2)), ((6, 7), (2, 2))]
"""Parts of equal sizes, and others."""

CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.exhaustive)
    for case in [
        *QUICK,
        *product([(4, 4), (6, 6), (12, 12), (5, 7), (2, 3)], [(2, 3), (3, 2), (2, 2, 2)]),
    ]
]


@pytest.mark.parametrize(("shape", "hierarchy"), CASES, ids=str)
def test_the_blocks_of_a_device_show_the_collective(
    shape: Shape, hierarchy: tuple[int, ...]
) -> None:
    collectives = 0
    for task in tasks(shape, hierarchy):
        whole = exchange_of(task, (), None)
        devices = sorted(set(whole.devices))
        wanted = chosen(whole, devices)
        for device in devices:
            found = chosen(exchange_of(task, (), [device]), [device])
            assert found == (None if wanted is None else {device: wanted[device]}), task.attrs
        collectives += wanted is not None
        assert wanted is None or is_regular(task.attrs)
    assert collectives


def transfers(ranks: int) -> tuple[int, int]:
    """Return the blocks, and the sends and receives, of a rank between uneven grids."""
    every = Placement.parse("gpu", f"0:0-{ranks - 1}", (ranks // 2, 2))
    fewer = Placement.parse("gpu", f"0:0-{ranks - 3}", (ranks // 2 - 1, 2))
    shape, devices = (ranks * (ranks // 2 - 1) + 1, 3), [Device("gpu", 0, i) for i in range(ranks)]
    step = direct(shape, TensorLayout(every, (S(0), S(1))), TensorLayout(fewer, (S(0), S(1))))
    assert step is not None
    values = {rank: Value("x", rank) for rank in range(ranks)}
    own, blocks, boxes = devices[ranks // 2], 0, 0
    for group in groups_of(step):
        op, *_ = exchange_op(step, group, tensor_type(shape, float32), values, devices)
        exchange = exchange_of(
            Task("x", "boxing", op.attrs, (), (), None, own, "boxing"), (), [own]
        )
        assert not exchange.is_regular
        ends = (Sparse(len(end), {}) for end in (exchange.senders, exchange.receivers))
        (gathers,) = phases_of(exchange, *ends).phases
        blocks += len(exchange.blocks)
        boxes += sum(map(len, routes(gathers, lambda device: device.index).values()))
    return blocks, boxes


def test_transfers_between_uneven_grids_do_not_grow_with_the_ranks() -> None:
    blocks, boxes = transfers(8)
    assert 0 < boxes <= blocks
    assert transfers(64) == (blocks, boxes)
