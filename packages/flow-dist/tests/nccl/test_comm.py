"""The comm kit over a fake of NCCL, on several ranks that are threads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from nccl_fakes import Fabric, FakeDriver, FakeGpu, on_ranks

from flow_core.base.dtypes import DType, float32
from flow_core.base.shapes import Shape
from flow_core.comm.exchange import Exchange, exchange_of
from flow_core.compiler.distribute.collectives import exchange_op
from flow_core.compiler.reshard.direct import direct
from flow_core.compiler.reshard.steps import groups_of
from flow_core.device import Comm
from flow_core.ir.graph import Value, tensor_type
from flow_core.plan import Task
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import B, P, S
from flow_core.sharding.topology import Device, Placement
from flow_core.testing import CommKit, comm_cases, comms
from flow_dist.nccl.comm import NcclComm
from flow_dist.nccl.communicators import Communicators

pytestmark = pytest.mark.representative(
    r"test_moves\[.*-(float32|bool)\]|test_(?!moves|is_bound_once|counts)|_(uneven|empty)\]",
    "most transfers do not depend on the type; uneven and empty parts are edge cases",
)


DEVICES = tuple(Device("gpu", 0, index) for index in range(4))


def odd(name: str, draft: Callable[..., Exchange], **changes: Any) -> Exchange:
    return replace(draft(DEVICES, float32), name=name, **changes)


def added(exchange: Exchange) -> Exchange:
    """Nothing is copied: all is combined with the neutral elements that are there before."""
    blocks = tuple(replace(block, first=False) for block in exchange.blocks)
    fills = tuple((index, "max") for index in range(len(exchange.outputs)))
    return replace(exchange, blocks=blocks, fills=fills, combine="max")


def backwards(exchange: Exchange) -> Exchange:
    """The parts of an all-gather from the last device to the first one."""
    size = exchange.outputs[0].size
    blocks = tuple(replace(b, at=(size - b.at[0] - b.size[0],)) for b in exchange.blocks)
    return replace(exchange, blocks=blocks)


def summed(exchange: Exchange) -> Exchange:
    """All parts of an all-gather in one place."""
    blocks = tuple(replace(b, at=(0,), first=b.source == 0) for b in exchange.blocks)
    fills = tuple((index, "sum") for index in range(len(exchange.outputs)))
    return replace(exchange, blocks=blocks, fills=fills)


def rotated(group: Sequence[str], dtype: DType) -> Exchange:
    """Each device sends each other device another part of the same size."""
    found = comm_cases.all_gather((4, 4, 4, 4))(group, dtype)
    blocks = tuple(
        replace(b, start=(b.target,), size=(1,), at=(4 * b.source + b.target,))
        for b in found.blocks
    )
    return replace(found, blocks=blocks, fills=tuple((i, "sum") for i in range(4)))


ODD = {
    "broadcast_added": added(odd("broadcast_added", comm_cases.broadcast(1, (2, 3)))),
    "all_gather_added": added(odd("all_gather_added", comm_cases.all_gather((2, 2, 2, 2)))),
    "all_to_all_added": added(odd("all_to_all_added", comm_cases.all_to_all(lambda s, t: 2))),
    "reduce_added": added(odd("reduce_added", comm_cases.reduce_to(3, (4,)))),
    "all_gather_summed": summed(odd("summed", comm_cases.all_gather((3, 3, 3, 3)))),
    "all_gather_backwards": backwards(odd("backwards", comm_cases.all_gather((3, 3, 3, 3)))),
    "all_gather_rotated": odd("rotated", rotated),
}


class RanksKit(CommKit):
    """Each of several threads is a process with some of four devices."""

    comm_name = "nccl"
    devices = DEVICES
    ranks = 2
    ordered = False
    gpus: dict[Device, FakeGpu]

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        fabric, self.gpus = Fabric(), {name: FakeGpu(i) for i, name in enumerate(self.devices)}

        def one(world: Any) -> None:
            groups = Communicators(fabric.library(), world)
            body(NcclComm(self.devices, groups, ordered=self.ordered))

        on_ranks(self.ranks, one)
        fabric.check()

    def driver(self, device: Device) -> Any:
        return FakeDriver(self.gpus[device])


class TestOnTwoRanks(RanksKit):
    ranks = 2
    dtypes = ("float32",)


class TestOnThreeRanks(RanksKit):
    """One of them has two devices."""

    ranks = 3
    dtypes = ("float32", "bool")


class TestOnFourRanks(RanksKit):
    ranks = 4
    dtypes = ("float32",)


class TestInOneProcess(RanksKit):
    ranks = 1
    dtypes = ("float32",)


class TestInOrder(RanksKit):
    """Floating sums in the order of the exchange: by sends and receives."""

    ranks = 3
    ordered = True
    dtypes = ("float32",)


@pytest.mark.parametrize("form", ODD)
def test_what_collectives_are_not(form: str) -> None:
    """Parts that are combined with what is there, in another order, or different for each."""
    kit = TestOnFourRanks()

    def body(comm: Comm) -> None:
        run = comms.BoundExchange(kit, comm, ODD[form], 3)
        for _ in range(2):
            run.launch()
            run.check()

    kit.everywhere(body)


FLAT = (
    (S(0), B), (S(0), S(1)), (P, S(0)), (P, S(1)), (P, B), (S(1), B), (S(1), S(0)), (P, P),
)  # fmt: skip
GRID = (
    ((S(0), B), (B, B)), ((P, B), (S(0), B)), ((S(0), S(1)), (S(1), S(0))), ((B, P), (P, S(0))),
    ((S(0), S(0)), (B, S(0))), ((P, S(0)), (S(1), B)),
)  # fmt: skip
"""Layouts of a grid; those of the fourth pair make partial results of others."""


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("shape", [(8, 4), (6, 7), (2, 5)], ids=str)
def test_a_process_needs_its_own_blocks_only(
    shape: Shape, ranks: int, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes choose the same collectives, also for uneven and empty parts."""
    kit = TestOnFourRanks()
    monkeypatch.setattr(kit, "ranks", ranks)
    monkeypatch.setattr(kit, "ordered", ordered)

    def body(comm: Comm) -> None:
        for task in tasks(shape):
            exchange = exchange_of(task, (), comm.local)
            run = comms.BoundExchange(kit, comm, exchange, 3)
            for step in range(2):
                run.refill(step)
                run.launch()
                run.check()

    kit.everywhere(body)


def tasks(shape: Shape) -> list[Task]:
    """Return the exchanges between layouts of the devices, and from and to other devices."""
    every, one, three = (Placement.parse("gpu", ids) for ids in ("0:0-3", "0:1", "0:3,0:0-1"))
    ends: list[Any] = [(every, every, a, b) for a, b in FLAT]
    ends += [(every, one, sbp, B) for sbp in (P, S(0))] + [
        (one, every, B, S(0)),
        (one, every, B, B),
    ]
    ends += [(every, three, S(0), S(1)), (three, every, P, S(0)), (three, every, S(0), B)]
    grid = Placement.parse("gpu", "0:0-3", (2, 2))
    ends += [(grid, grid, *pair) for pair in GRID]
    found = []
    for source, target, a, b in ends:
        a, b = (sbp if isinstance(sbp, tuple) else (sbp,) for sbp in (a, b))
        step = direct(shape, TensorLayout(source, a), TensorLayout(target, b))
        for group in groups_of(step) if step else ():
            if group.crosses:
                values = {rank: Value("x", rank) for rank in range(4)}
                op, *_ = exchange_op(step, group, tensor_type(shape, float32), values, DEVICES)
                found.append(
                    Task(f"x{len(found)}", "boxing", op.attrs, (), (), None, DEVICES[0], "boxing")
                )
    assert len(found) > 10
    return found


@pytest.mark.exhaustive
class TestAllTypes(RanksKit):
    ranks = 3


@pytest.mark.exhaustive
class TestAllTypesInOrder(RanksKit):
    ranks = 4
    ordered = True
