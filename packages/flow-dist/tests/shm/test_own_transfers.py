"""Exchanges in shared memory of ranks that know their own transfers only, between threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from thread_ranks import on_threads

from flow_core.base.dtypes import float32
from flow_core.base.shapes import Shape
from flow_core.comm.exchange import Exchange, exchange_of
from flow_core.compiler.distribute.collectives import exchange_op
from flow_core.compiler.reshard.direct import direct
from flow_core.compiler.reshard.steps import groups_of
from flow_core.device import Arena, Comm
from flow_core.ir.graph import Value, tensor_type
from flow_core.plan import Task
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import B, NdSbp, P, S
from flow_core.sharding.topology import Device, Placement
from flow_core.testing import CommKit, comm_cases, comms
from flow_dist.control.waiting import WAIT_POLICY
from flow_dist.mpi import comm
from flow_dist.mpi.comm import MpiComm
from flow_dist.shm import in_place, memory
from flow_dist.shm.counters import TOTAL_STORE_ORDER

if not TOTAL_STORE_ORDER:
    pytest.skip("needs stores that are seen in their order", allow_module_level=True)

pytestmark = pytest.mark.representative(
    r"test_(?!is_bound_once|counts)|_(uneven|empty)\]", "uneven and empty parts are edge cases"
)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are small, and threads, of which one runs at a time, do not spin."""
    monkeypatch.setattr(memory, "STAGE_BYTES", 1 << 12)
    monkeypatch.setattr(WAIT_POLICY, "spins", 0)


class ThreadKit(CommKit):
    """Each of several threads is a process with some of four devices."""

    comm_name = "mpi"
    ranks = 4
    dtypes = ("float32",)

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        kept: list[Comm] = []  # until all ranks have ended: all have the same process id

        def one(world: Any) -> None:
            here = MpiComm(self.devices, world)
            kept.append(here)
            body(here)

        on_threads(self.ranks, 4, one)

    def allocate(self, comm: Comm, device: Device, nbytes: int) -> Arena:
        """Every other array is in memory that other ranks can map."""
        arena = comm.arena(device, nbytes) if nbytes % 8 else None
        return super().allocate(comm, device, nbytes) if arena is None else arena


class TestInSlots(ThreadKit):
    """One rank has two devices."""

    ranks = 3


class TestInPlace(ThreadKit):
    @pytest.fixture(autouse=True)
    def in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comm, "IN_PLACE_BYTES", 0)


class TestInPlaceOnThreeRanks(TestInPlace):
    ranks = 3


DEVICES = CommKit.devices
GRID = Placement.parse("cpu", "0:0-3", (2, 2))
FLAT, THREE = Placement.parse("cpu", "0:0-3"), Placement.parse("cpu", "0:3,0:0-1")
PAIRS: Sequence[tuple[Placement, Placement, NdSbp, NdSbp]] = (
    (FLAT, FLAT, (S(0),), (B,)), (FLAT, FLAT, (S(0),), (S(1),)), (FLAT, FLAT, (P,), (S(0),)),
    (FLAT, THREE, (S(0),), (S(0),)), (THREE, FLAT, (P,), (S(1),)), (THREE, FLAT, (B,), (S(0),)),
    (GRID, GRID, (S(0), S(1)), (S(1), S(0))), (GRID, GRID, (P, B), (S(0), B)),
    (GRID, GRID, (B, P), (P, S(0))), (GRID, GRID, (S(0), S(0)), (B, S(0))),
    (GRID, GRID, (S(1), P), (B, B)),
)  # fmt: skip


def tasks(
    shape: Shape, source: TensorLayout, target: TensorLayout, devices: Sequence[Device]
) -> Iterator[Task]:
    """Yield the described exchanges between two layouts."""
    step = direct(shape, source, target)
    for group in groups_of(step) if step else ():
        if step and group.crosses:
            values = {rank: Value("x", rank) for rank in range(source.placement.size)}
            op, *_ = exchange_op(step, group, tensor_type(shape, float32), values, devices)
            yield Task("x", "boxing", op.attrs, (), (), None, devices[0], "boxing")


@pytest.mark.parametrize("limit", [0, 1 << 16], ids=["in place", "in slots"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("shape", [(8, 4), (6, 7), (2, 5)], ids=str)
def test_layouts_determine_the_transfers_of_a_rank(
    shape: Shape, ranks: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are those of the exchange in which all blocks are listed."""
    monkeypatch.setattr(comm, "IN_PLACE_BYTES", limit)
    kit = ThreadKit()
    monkeypatch.setattr(kit, "ranks", ranks)
    found = [
        task
        for a, b, source, target in PAIRS
        for task in tasks(shape, TensorLayout(a, source), TensorLayout(b, target), DEVICES)
    ]
    assert len(found) > 8

    def body(comm: Comm) -> None:
        for task in found:
            run = comms.BoundExchange(kit, comm, exchange_of(task, (), comm.local), 3)
            for step in range(3):
                run.refill(step)
                run.launch()
                run.check()

    kit.everywhere(body)


class SharingKit(ThreadKit):
    """All arrays are in memory that other ranks can map, or none."""

    mapped = True

    def allocate(self, comm: Comm, device: Device, nbytes: int) -> Arena:
        arena = comm.arena(device, nbytes) if self.mapped else None
        return CommKit.allocate(self, comm, device, nbytes) if arena is None else arena


@pytest.mark.parametrize(
    ("form", "most", "mapped", "copies"),
    [
        ("broadcast", 8, True, [1, 1, 1, 1]),
        ("all_gather", 8, True, [4, 4, 4, 4]),
        ("all_gather", 3, True, [0, 0, 0, 0]),
        ("all_gather", 8, False, [0, 0, 0, 0]),
        ("all_to_all", 8, True, [0, 0, 0, 0]),
    ],
)
def test_ranks_share_the_copying_of_boxes_for_several(
    form: str, most: int, mapped: bool, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "IN_PLACE_BYTES", 0)
    monkeypatch.setattr(in_place, "MOST_SHARING", most)
    kit, found, launches = SharingKit(), Counter[int](), in_place._Copy.launches
    kit.mapped = mapped

    def counted(self: Any, rank: int) -> Any:
        found[rank] += 1
        return launches(self, rank)

    monkeypatch.setattr(in_place._Copy, "launches", counted)
    draft = {
        "broadcast": comm_cases.broadcast(1, (7, 3)),
        "all_gather": comm_cases.all_gather((4, 5, 6, 7)),
        "all_to_all": comm_cases.all_to_all(lambda s, t: 8),
    }[form]
    exchange = draft(DEVICES, float32)

    def body(comm: Comm) -> None:
        run = comms.BoundExchange(kit, comm, exchange, 3)
        for step in range(3):
            run.refill(step)
            run.launch()
            run.check()

    kit.everywhere(body)
    assert [found[rank] for rank in range(4)] == copies


# --------------------------------------------------------------------------------- many ranks


class Counted:
    """What one rank does when it binds an exchange.

    Attributes:
        counts: calls by name, and bytes of messages.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
        self.counts: Counter[str] = Counter()
        self._rank = ranks // 2
        self._own: set[int] = set()
        self._kept: list[Comm] = []  # peers may still map its memory
        for name in ("stage", "open"):
            self._count(monkeypatch, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        call = getattr(memory.SharedMemory, name)

        def counted(shared: Any, *args: Any) -> Any:
            if id(shared) in self._own:
                self.counts[name] += 1
            return call(shared, *args)

        monkeypatch.setattr(memory.SharedMemory, name, counted)

    def bind(self, ranks: int, draft: Callable[[Sequence[Device]], Exchange | Task]) -> None:
        """Bind an exchange between devices of a rank each, in all ranks."""
        devices = tuple(Device("cpu", 0, index) for index in range(ranks))
        drafted, kit = draft(devices), CommKit()

        def body(world: Any) -> None:
            here = MpiComm(devices, world)
            self._kept.append(here)
            if world.rank == self._rank:
                self._own.add(id(here._memory))
            found = drafted
            if isinstance(found, Task):
                found = exchange_of(found, (), here.local)
                if world.rank == self._rank:
                    self.counts["blocks"] += len(found.blocks)
            comms.BoundExchange(kit, here, found, 0)

        self.counts["messages"] += on_threads(ranks, ranks, body)[self._rank]


def shifted(devices: Sequence[Device]) -> Task:
    """Rows of all devices to all but one: a device exchanges some with its neighbors."""
    count = len(devices)
    every, less = (Placement.parse("cpu", f"0:0-{last}") for last in (count - 1, count - 2))
    layouts = TensorLayout(every, (S(0),)), TensorLayout(less, (S(0),))
    (task,) = tasks((count * (count - 1), 2), *layouts, devices)
    return task


@pytest.mark.parametrize("limit", [0, 1 << 16], ids=["in place", "in slots"])
def test_what_a_rank_binds_does_not_grow_with_the_ranks(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "IN_PLACE_BYTES", limit)
    found = []
    for ranks in (8, 64):
        with monkeypatch.context() as patch:
            counted = Counted(patch, ranks)
            counted.bind(ranks, shifted)
        found.append(counted.counts)
    assert found[0] == found[1]
    assert 0 < found[0]["blocks"] < 6


@pytest.mark.parametrize("limit", [0, 1 << 16], ids=["in place", "in slots"])
@pytest.mark.parametrize("form", ["all_gather", "reduce_scatter", "all_reduce"])
def test_what_a_rank_binds_grows_with_its_peers(
    form: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank does not map what its peers send each other."""
    monkeypatch.setattr(comm, "IN_PLACE_BYTES", limit)
    found = []
    for ranks in (12, 48):
        drafts = {
            "all_gather": comm_cases.all_gather([64] * ranks),
            "reduce_scatter": comm_cases.reduce_scatter([64] * ranks),
            "all_reduce": comm_cases.all_reduce((3,)),
        }
        with monkeypatch.context() as patch:
            counted = Counted(patch, ranks)
            counted.bind(ranks, lambda devices, draft=drafts[form]: draft(devices, float32))
        found.append(counted.counts.total())
    assert found[0] < found[1] < 5 * found[0]
