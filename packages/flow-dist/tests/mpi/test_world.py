"""Ownership of devices, shared memory and waiting, without MPI."""

import os
import sys

import numpy as np
import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.plugins.specs import Unavailable
from flow_core.sharding.topology import Device
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.control.waiting import VERDICT, wait
from flow_dist.mpi.lazy import bootstrap
from flow_dist.mpi.world import MpiWorld, free_requests
from flow_dist.phases import Box
from flow_dist.shm.memory import Segment, SharedMemory, open_segment, shared_memory_peers


class Lonely:
    """A communicator without messages."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def Dup(self) -> "Lonely":
        return self


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
def test_every_device_has_one_owner_on_its_machine(size: int, machines: int, devices: int) -> None:
    world = MpiWorld(Lonely(0, size))
    if size % machines and machines % size:
        with pytest.raises(LaunchError, match="neither number divides"):
            world.arrange(machines)
        return
    world.arrange(machines)
    owners = [[world.owner(Device("cpu", m, i)) for i in range(devices)] for m in range(machines)]
    assert all(0 <= owner < size for row in owners for owner in row)
    assert [min(row) for row in owners] == sorted(min(row) for row in owners)
    for machine, row in enumerate(owners):
        for rank in row:
            local = MpiWorld(Lonely(rank, size))
            local.arrange(machines)
            first = machine if size >= machines else machine - machine % (machines // size)
            assert local.machine == first
    if devices >= size // machines:
        assert {owner for row in owners for owner in row} == set(range(size))


def test_devices_of_a_machine_go_round_its_processes() -> None:
    world = MpiWorld(Lonely(0, 4))
    world.arrange(2)
    assert [world.owner(Device("gpu", 1, i)) for i in range(5)] == [2, 3, 2, 3, 2]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no anonymous shared memory here")
def test_segments_are_seen_through_their_place() -> None:
    memory = SharedMemory()
    whole = memory.arena(4096).view(128, (4, 8), np.float32)
    whole[...] = np.arange(32).reshape(4, 8)
    place, part = memory.location_of(whole[1:3, 2:4]), whole[1:3, 2:4]
    assert place is not None
    assert place[3] == 128 + 4 * (8 + 2)
    box = Box(Device("cpu", 0, 0), (), part.shape, np.dtype("f4"), part)
    seen = SharedMemory().open(place, part.strides, box)
    np.testing.assert_array_equal(seen, part)
    whole[1, 2] = -1
    assert seen[0, 0] == -1
    assert memory.location_of(np.zeros(3)) is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no anonymous shared memory here")
def test_segments_end_with_their_owner() -> None:
    segment = Segment(100)
    process, file, size, _ = segment.location
    assert open_segment(process, file, size).size == 100
    del segment
    with pytest.raises(OSError, match=r".*"):
        open_segment(process, file, size)


def test_unreadable_ranks_share_no_memory() -> None:
    rounds = [lambda text: [text, b"", b"1 2 3 secret"], lambda text: [text, b"1", b"0 2"]]
    assert shared_memory_peers(lambda text: rounds.pop(0)(text)) == (
        frozenset({0} if hasattr(os, "memfd_create") else ()), frozenset({1}), frozenset({2}),
    )  # fmt: skip


def test_a_verdict_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(10**6))

    def done() -> bool:
        if next(looks) == 100:
            VERDICT.error = LaunchError("the end of the job")
        return False

    monkeypatch.setattr(VERDICT, "error", None)
    with pytest.raises(LaunchError, match="the end of the job"):
        wait(done)


def test_a_single_process_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(bootstrap(), Unavailable)


def test_a_single_process_does_not_import_mpi() -> None:
    """Else every program of one process would pay for it at its first job."""
    program = """
import sys
import oneflow as flow
import oneflow.typing as tp
import numpy as np

@flow.global_function()
def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    return x + 1

job(np.zeros(2, np.float32))
loaded = {"flow_dist.mpi.world", "flow_dist.control.channel", "psutil", "mpi4py"} & set(sys.modules)
assert not loaded, loaded
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "OMPI_"))}
    processes.run([sys.executable, "-c", program], check=True, env=env)


def test_a_world_without_requests_does_not_start_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    free_requests([])
    with pytest.raises(ImportError):
        free_requests([object()])
