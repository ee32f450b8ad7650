"""Failures between ranks: they are detected, typed, and nothing is used afterwards."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import processes
import pytest
from nccl_fakes import Fabric, FakeError, FakeGpu, FakeNccl, FakeWorld, Foreign, array_of, on_ranks

from flow_core import device as protocols
from flow_core.base.dtypes import as_dtype, float32, tensor_buffer
from flow_core.base.errors import ConfigError, ProcessesDifferError, UnsupportedError
from flow_core.comm.exchange import Exchange
from flow_core.ir.graph import tensor_type
from flow_core.sharding.topology import Device
from flow_core.testing import comm_cases
from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.control import termination, waiting
from flow_dist.control.board import Limits
from flow_dist.control.client import ControlClient, JobStoppedError
from flow_dist.control.server import ControlServer
from flow_dist.control.waiting import VERDICT
from flow_dist.control.watch import WATCH
from flow_dist.nccl import comm as nccl
from flow_dist.nccl.comm import NcclComm
from flow_dist.nccl.communicators import Communicators, NcclError
from flow_dist.nccl.guard import Guard

DEVICES = (Device("gpu", 0, 0), Device("gpu", 0, 1))
FOUR = tuple(Device("gpu", 0, i) for i in range(4))
SUM = replace(comm_cases.all_reduce((4,))(DEVICES, float32), name="grads", line="train.py:7")


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test the state of a new process: no groups of other jobs, no verdict."""
    monkeypatch.setattr(WATCH, "_groups", {})
    yield
    VERDICT.error = None


class Rank:
    """A rank that has one of the devices, and a comm."""

    def __init__(self, fabric: Fabric, world: FakeWorld, devices: tuple[str, ...] = DEVICES):
        self.world = world
        self.gpus = {d: FakeGpu(i) for i, d in enumerate(devices) if world.owner(d) == world.rank}
        self.library = fabric.library()
        self.groups = Communicators(self.library, world)
        self.comm = NcclComm(devices, self.groups, ordered=False)
        self.guards: list[Guard] = []

    def guard(self, poll: float) -> Guard:
        """Return a guard that ends with the rank."""
        self.guards.append(Guard(self.groups, poll))
        return self.guards[-1]

    def close(self) -> None:
        for guard in self.guards:
            guard.close()

    def bind(self, exchange: Exchange) -> tuple[Callable[[], object], ...]:
        return self.comm.bind(exchange, *self.arrays(exchange))

    def arrays(self, exchange: Exchange) -> tuple[list[Any], list[Any]]:
        rows = (exchange.senders, exchange.inputs), (exchange.receivers, exchange.outputs)
        given, made = ([self.array(d, t) for d, t in zip(*row, strict=True)] for row in rows)
        return given, made

    def array(self, device: Device, type_: Any) -> Any:
        ones = np.ones(type_.shape, type_.dtype.numpy)
        return array_of(self.gpus[device], ones) if device in self.gpus else None


def run(
    size: int,
    body: Callable[[Rank], None],
    devices: tuple[str, ...] = DEVICES,
    patience: float = 60.0,
) -> Fabric:
    fabric = Fabric(processes.scaled(patience))

    def on_rank(world: FakeWorld) -> None:
        with closing(Rank(fabric, world, devices)) as rank:
            body(rank)

    on_ranks(size, on_rank)
    return fabric


# ------------------------------------------------------------------------------ before a run


def test_objects_are_refused() -> None:
    type_ = tensor_type((2,), tensor_buffer)
    exchange = replace(SUM, collective="send_recv", inputs=(type_,), outputs=(type_,))
    exchange = replace(exchange, senders=DEVICES[:1], receivers=DEVICES[1:])

    def body(rank: Rank) -> None:
        given = [np.empty(2, object) if Device("gpu", 0, 0) in rank.gpus else None]
        made = [np.empty(2, object) if Device("gpu", 0, 1) in rank.gpus else None]
        with pytest.raises(UnsupportedError, match=r"train.py:7[\s\S]*tensor_buffer"):
            rank.comm.bind(exchange, given, made)

    assert not run(2, body).cliques


def test_other_devices_are_refused() -> None:
    exchange = comm_cases.exchange_between(
        "up",
        "copy_h2d",
        [(Device("cpu", 0, 0), (2,))],
        [(Device("gpu", 0, 0), (2,))],
        dtype=as_dtype("float32"),
    )

    def body(rank: Rank) -> None:
        with pytest.raises(UnsupportedError, match=r"other types: cpu:0:0"):
            rank.comm.bind(exchange, [None], [rank.array(Device("gpu", 0, 0), exchange.outputs[0])])

    run(1, body)


def test_different_versions_are_refused() -> None:
    def body(rank: Rank) -> None:
        rank.library.version = 22000 + rank.world.rank
        with pytest.raises(LaunchError, match=r"rank 0 on .*2\.20\.0; rank 1 on .*2\.20\.1"):
            rank.bind(SUM)

    run(2, body)


def test_one_gpu_twice_is_refused() -> None:
    def body(rank: Rank) -> None:
        for device in rank.gpus.values():
            device.place = "GPU-7"
        with pytest.raises(LaunchError, match=r"gpu:0:0 of rank 0 and gpu:0:1 of rank 1 .* GPU-7"):
            rank.bind(SUM)

    run(2, body)


def test_a_failed_join_names_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(self: FakeNccl, size: int, unique_id: bytes, rank: int) -> None:
        raise FakeError(2, "no route to host")

    monkeypatch.setattr(FakeNccl, "join", join)

    def body(rank: Rank) -> None:
        with pytest.raises(NcclError, match="no route to host") as caught:
            rank.bind(SUM)
        assert (caught.value.code, caught.value.rank) == (2, rank.world.rank)
        assert "gpu:0:0, gpu:0:1" in str(caught.value)
        assert "NCCL_SOCKET_IFNAME" in (caught.value.hint or "")

    run(2, body)


def test_a_verdict_ends_the_wait_for_a_rank() -> None:
    """The other rank never joins: no thread stays in NCCL forever."""

    def body(rank: Rank) -> None:
        described = rank.groups._describe(DEVICES, copiers(rank))
        rank.world.gather(b"", "start")
        if rank.world.rank:
            rank.world.gather_among(
                (0, 1),
                str(described).replace("'", '"').encode(),
                "connecting 2 devices by NCCL: gpu:0:0, gpu:0:1",
            )
            return
        threading.Timer(0.2, lambda: setattr(VERDICT, "error", JobStoppedError("x"))).start()
        with pytest.raises(JobStoppedError):
            rank.groups.get(DEVICES, copiers(rank))

    run(2, body)


def copiers(rank: Rank) -> dict[str, Any]:
    one = tensor_type((1,), float32)
    return {device: rank.array(device, one).copier for device in rank.gpus}


# ------------------------------------------------------------------------------ communicators


def test_one_communicator_per_group_for_all_plans() -> None:
    """Rows, columns and all of a grid of hosts and devices; made once, however often used."""
    rows, columns = (FOUR[:2], FOUR[2:]), (FOUR[::2], FOUR[1::2])
    groups = [*rows, *columns, FOUR]
    exchanges = [
        replace(comm_cases.all_reduce((3,))(group, float32), name=f"sum{i}")
        for i, group in enumerate([*groups, *groups, FOUR[::-1]])
    ]

    def body(rank: Rank) -> None:
        other = NcclComm(FOUR, rank.groups, ordered=False)
        for comm in (rank.comm, other):
            for exchange in exchanges:
                for launch in comm.bind(exchange, *rank.arrays(exchange)):
                    launch()
        mine = [g for g in groups if FOUR[rank.world.rank] in g]
        assert [c.devices for c in rank.groups.communicators if c.ends] == mine

    fabric = run(4, body, FOUR)
    fabric.check()
    assert sorted(clique.size for clique in fabric.cliques.values()) == [2, 2, 2, 2, 4]


def test_calls_are_groups_of_their_own() -> None:
    bucket = comm_cases.all_reduce((3,), (2, 2), (5,))(DEVICES, float32)

    def body(rank: Rank) -> None:
        for launch in rank.bind(bucket):
            launch()
        assert rank.library.depths == [1]
        assert len(rank.library.groups) == 1

    run(2, body).check()


def test_work_of_one_device_can_be_captured() -> None:
    """That of several is not their driver's: each has a stream of its own."""

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        assert isinstance(launch, Foreign) == (rank.world.size == 2)
        if rank.world.size == 2:
            assert [box.shape for box in (*launch.reads, *launch.writes)] == [(4,), (4,)]
        launch()

    run(2, body)
    run(1, body)


def test_replayed_steps_count() -> None:
    """A captured graph makes no calls: bytes are counted by steps then."""

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        for step in range(5):
            rank.comm.before_step()
            if step < 2:
                launch()
            rank.comm.after_step()
        ((_, nbytes),) = rank.comm.sent().items()
        assert nbytes == 5 * 16

    run(2, body)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_large_sum_is_counted_once(ordered: bool) -> None:
    """In the plan's order it takes two stages."""
    exchange = comm_cases.all_reduce((5001,))(DEVICES, float32)

    def body(rank: Rank) -> None:
        comm = NcclComm(DEVICES, rank.groups, ordered=ordered)
        for launch in comm.bind(exchange, *rank.arrays(exchange)):
            launch()
        assert len(rank.library.depths) == 1 + ordered
        own = {link: n for link, n in exchange.links().items() if link[0] in comm.local}
        assert dict(comm.sent()) == own

    run(2, body).check()


def test_exchanges_take_turns_in_the_memory_for_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten exchanges that pack take the memory of one, and each gets its own numbers."""
    monkeypatch.setattr(protocols, "SLAB_BYTES", 256)
    columns = comm_cases.columns(DEVICES, float32)
    exchanges = [replace(columns, name=f"columns{i}") for i in range(10)]

    def body(rank: Rank) -> None:
        bound = [(rank.arrays(e), e) for e in exchanges]
        (gpu,) = rank.gpus.values()
        before = len(gpu.blocks)
        launches = [rank.comm.bind(e, *arrays) for arrays, e in bound]
        assert len(gpu.blocks) == before + 1
        for number, ((given, _), _) in enumerate(bound):
            given[rank.world.rank].numpy()[...] = 10 * number + rank.world.rank
        for row in launches:
            for launch in row:
                launch()
        for number, ((_, made), _) in enumerate(bound):
            want = [10 * number] * 2 + [10 * number + 1] * 3
            np.testing.assert_array_equal(made[rank.world.rank].numpy(), [want] * 3)

    run(2, body).check()


# ---------------------------------------------------------------------------------- in a run


@pytest.mark.slow
def test_a_rank_that_diverges() -> None:
    """Another count, and another order, are seen by the fake; NCCL itself would hang."""
    other = replace(comm_cases.all_reduce((5,))(DEVICES, float32), name="grads", line="train.py:9")

    def body(rank: Rank) -> None:
        (launch,) = rank.bind((SUM, other)[rank.world.rank])
        with pytest.raises(NcclError, match=r"grads.*train.py:[79]") as caught:
            launch()
        assert caught.value.rank == rank.world.rank
        with pytest.raises(NcclError):
            launch()

    assert "diverge" in run(2, body).violations[0]

    def crossed(rank: Rank) -> None:
        wide = comm_cases.all_reduce((3,))(FOUR, float32)
        launches = [launch for exchange in (wide, SUM) for launch in rank.bind(exchange)]
        if rank.world.rank < 2:
            for launch in launches[:: -1 if rank.world.rank else 1]:
                with pytest.raises(NcclError):
                    launch()

    assert "for ever" in run(4, crossed, FOUR, patience=1).violations[0]


def test_a_refused_call_ends_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: FakeNccl, name: str, end: Any, *arguments: int) -> None:
        raise FakeError(4, "no such type")

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        WATCH.steps = 12
        with pytest.raises(NcclError) as caught:
            launch()
        text = str(caught.value)
        assert "all_reduce float32[4] in 'grads' (train.py:7), on gpu:0:0, gpu:0:1" in text
        assert f"on rank {rank.world.rank} on {caught.value.host}, at step 12" in text
        assert "no such type (4)" in text
        assert rank.library._local.depth == 0
        with pytest.raises(NcclError, match="no such type"):
            rank.comm.before_step()

    monkeypatch.setattr(FakeNccl, "_call", call)
    try:
        assert not run(2, body).violations
    finally:
        WATCH.steps = 0


def test_an_asynchronous_error() -> None:
    """The guard finds it, gives NCCL up, and the step's results are not handed out."""

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        guard = rank.guard(poll=60)
        rank.comm.before_step()
        launch()
        guard.check()
        rank.comm.after_step()
        (clique,) = rank.library.fabric.cliques.values()
        rank.comm.before_step()
        launch()
        if rank.world.rank:
            return
        clique.errors[0] = 6
        guard.check()
        with pytest.raises(NcclError, match="a cable was pulled") as caught:
            rank.comm.after_step()
        assert caught.value.code == 6
        assert "'grads' between gpu:0:0, gpu:0:1" in str(caught.value)
        assert isinstance(VERDICT.error, NcclError)
        with pytest.raises(NcclError):
            launch()
        guard.check()
        assert [clique.ends[r].state for r in (0, 1)] == ["aborted", "open"]

    assert not run(2, body).violations


def test_the_end_of_a_communicator_is_no_failure() -> None:
    """The guard may run while a process frees its communicators one after another."""

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        launch()
        guard = rank.guard(poll=60)
        for communicator in rank.groups.communicators:
            communicator.destroy()
        guard.check()
        assert VERDICT.error is None
        with pytest.raises(LaunchError, match="freed"):
            launch()

    assert not run(2, body).violations


def test_the_end_of_the_job_frees_a_waiting_device() -> None:
    """One rank waits on its device for another one that never comes, and the job is stopped."""
    ended: list[int] = []

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        if rank.world.rank:
            return
        rank.guard(poll=60)
        threading.Timer(0.3, termination.prepare, ["rank 1 of 2 on b was killed"]).start()
        rank.comm.before_step()
        launch()  # what is in the stream ends, whatever is in memory then
        ended.append(rank.world.rank)
        with pytest.raises(JobStoppedError, match="rank 1 of 2 on b was killed"):
            rank.comm.after_step()
        with pytest.raises(JobStoppedError):
            rank.comm.before_step()
        with pytest.raises(JobStoppedError):
            launch()

    assert not run(2, body).violations
    assert ended == [0]


def test_the_control_channel_frees_a_waiting_device() -> None:
    """The same by the channel: a rank's connection is lost, the others are to stop."""
    server = ControlServer(2, "secret", limits=Limits(beat=0.05, silence=1.0, settle=0.1))
    stopped = threading.Event()

    def client(rank: int) -> ControlClient:
        place = Membership(rank, 2, rank, 2, f"host{rank}")
        stop = (lambda _: stopped.set()) if rank == 0 else (lambda _: None)
        return ControlClient(place, "127.0.0.1", server.port, "secret", stop=stop)

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        own = client(rank.world.rank)
        own.start(10)
        rank.world.gather(b"", "joined")
        if rank.world.rank:
            time.sleep(0.2)
            return own.close()
        rank.guard(poll=60)
        launch()
        with pytest.raises(JobStoppedError, match=r"rank 1 of 2 on host1"):
            rank.comm.after_step()
        assert stopped.wait(processes.scaled(5))
        own.close()

    try:
        assert not run(2, body).violations
    finally:
        server.close()


def test_the_guard_follows_the_verdict() -> None:
    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        launch()
        rank.world.gather(b"", "launched")
        rank.guard(poll=0.01)
        if not rank.world.rank:
            VERDICT.error = JobStoppedError("training", found="a silent link")
        until = time.monotonic() + processes.scaled(5)
        while rank.groups.communicators[0].error is None and time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(JobStoppedError, match="a silent link"):
            launch()

    assert not run(2, body).violations


def test_the_guard_frees_a_device_that_waits_for_another_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank's step waits on its device, while the other one has come to something else."""
    polls, parted = threading.Semaphore(0), threading.Event()

    def look() -> None:
        polls.release()
        if parted.is_set():
            raise ProcessesDifferError("running step 6 of job 'train' in all processes")

    monkeypatch.setattr(waiting, "POLL_HOOKS", [look])

    def body(rank: Rank) -> None:
        (launch,) = rank.bind(SUM)
        fabric = rank.library.fabric
        if rank.world.rank:
            with fabric.changed:
                fabric.wait(lambda: any(c.collectives for c in fabric.cliques.values()), str)
            while polls.acquire(blocking=False):
                pass
            for _ in range(2):  # the guard polls while the other rank is inside of NCCL
                assert polls.acquire(timeout=processes.scaled(30))
            return parted.set()
        rank.guard(poll=0.01)
        rank.comm.before_step()
        launch()
        with pytest.raises(ProcessesDifferError, match="step 6 of job 'train'"):
            rank.comm.after_step()
        assert isinstance(VERDICT.error, ProcessesDifferError)

    assert not run(2, body).violations


def test_freed_communicators_are_made_anew() -> None:
    def body(rank: Rank) -> None:
        (old,) = rank.bind(SUM)
        old()
        rank.groups.close()
        with pytest.raises(LaunchError, match="freed"):
            old()
        (new,) = rank.bind(SUM)
        new()

    fabric = run(2, body)
    fabric.check()
    assert len(fabric.cliques) == 2


def test_the_order_of_sums_is_a_setting() -> None:
    assert not nccl.is_ordered({})
    assert nccl.is_ordered({nccl.ORDERED: "1"})
    with pytest.raises(ConfigError, match="'yes'"):
        nccl.is_ordered({nccl.ORDERED: "yes"})


@pytest.mark.parametrize("ordered", [False, True])
def test_sums_in_the_order_of_the_plan(ordered: bool) -> None:
    """Numbers whose sum depends on the order: NCCL's own may be another one."""
    rows = [np.array([x], "f4") for x in (1e8, 1.0, -1e8, 1.0)]
    exchange = comm_cases.all_reduce((1,))(FOUR, float32)
    found = []

    def body(rank: Rank) -> None:
        comm = NcclComm(FOUR, rank.groups, ordered=ordered)
        given, made = rank.arrays(exchange)
        given[rank.world.rank].numpy()[...] = rows[rank.world.rank]
        for launch in comm.bind(exchange, given, made):
            launch()
        found.append(made[rank.world.rank].numpy()[0])

    run(4, body, FOUR).check()
    in_order = np.float32(0)
    for row in rows:
        in_order += row[0]
    assert len(set(found)) == 1
    assert (found[0] == in_order) == ordered
