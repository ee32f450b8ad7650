"""The comm kit over the comm for NCCL, in one of several processes joined by MPI.

MPI stands for the library, too: what is tested is that processes find each other, by the way that
a program takes.  The first argument is a folder that all processes see.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from checking import in_ranks
from nccl_fakes import NUMPY, FakeDriver, FakeError, FakeGpu

from flow_core.base.dtypes import as_dtype
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.plugins.specs import Available
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit, comm_cases, comms
from flow_dist.mpi.world import world
from flow_dist.nccl import comm as nccl
from flow_dist.nccl.library import PRIMITIVES
from flow_dist.nccl.staged import MpiStagedComm

CHECKS = (
    "is_a_comm", "moves", "is_bound_once", "sums_in_place", "counts_what_it_sends",
    "all_hold_the_same_bits",
)  # fmt: skip
FOLDER = Path(sys.argv[1])


class MpiNccl:
    """`flow_dist.nccl.library.Library` over MPI; an id is the name of files in the folder."""

    name, version, error = "MPI", 23203, FakeError

    def __init__(self, device: FakeGpu) -> None:
        self._device = device
        self._pending: list[tuple[str, Any, dict[str, int]]] = []

    def unique_id(self) -> bytes:
        return os.urandom(128)

    def join(self, size: int, unique_id: bytes, rank: int) -> Any:
        from mpi4py import MPI

        stem = unique_id[:8].hex()
        place = FOLDER / f"{stem}-{rank}"
        place.with_suffix(".new").write_text(str(MPI.COMM_WORLD.rank))
        place.with_suffix(".new").rename(place)
        files = [FOLDER / f"{stem}-{other}" for other in range(size)]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        members = [int(file.read_text()) for file in files]
        group = MPI.COMM_WORLD.group.Incl(members)
        return MPI.COMM_WORLD.Create_group(group, tag=int(stem[:3], 16))

    def group_start(self) -> None:
        assert not self._pending

    def primitive(self, name: str, comm: Any) -> Any:
        def call(*arguments: int) -> None:
            told = dict(zip(PRIMITIVES[name], arguments, strict=False))
            self._pending.append((name, comm, told))

        return call

    def group_end(self) -> None:
        requests: list[Any] = []
        for name, comm, told in self._pending:
            self._run(name, comm, told, requests)
        self._pending.clear()
        for request in requests:
            request.Wait()

    def _run(self, name: str, comm: Any, told: dict[str, int], requests: list[Any]) -> None:
        from mpi4py import MPI

        dtype = np.dtype(NUMPY[told["dtype"]])

        def row(key: str, times: int = 1) -> Any:
            return self._device.bytes_at(told[key], told["count"] * times * dtype.itemsize).view(
                dtype
            )

        op = {0: MPI.SUM, 2: MPI.MAX, 3: MPI.MIN}[told.get("op", 0)]
        if name == "all_reduce":
            given = MPI.IN_PLACE if told["send"] == told["receive"] else row("send")
            comm.Allreduce(given, row("receive"), op)
        elif name == "reduce_scatter":
            comm.Reduce_scatter_block(row("send", comm.size), row("receive"), op)
        elif name == "reduce":
            mine = row("receive") if comm.rank == told["root"] else None
            comm.Reduce(row("send"), mine, op, told["root"])
        elif name == "broadcast":
            buffer = row("send").copy() if comm.rank == told["root"] else row("receive")
            comm.Bcast(buffer, told["root"])
        elif name == "all_gather":
            comm.Allgather(row("send"), row("receive", comm.size))
        elif name == "all_to_all":
            comm.Alltoall(row("send", comm.size), row("receive", comm.size))
        elif name == "send":
            requests.append(comm.Isend(row("send"), told["peer"]))
        else:
            requests.append(comm.Irecv(row("receive"), told["peer"]))

    def async_error(self, comm: Any) -> int:
        return 0

    def destroy(self, comm: Any) -> None:
        comm.Free()


class RankKit(CommKit):
    comm_name = "nccl"
    devices = tuple(Device("gpu", 0, index) for index in range(4))
    dtypes = ("float32",)
    gpu: FakeGpu

    def comm(self) -> nccl.NcclComm:
        return nccl.NcclComm(self.devices)

    def driver(self, device: Device) -> Any:
        return FakeDriver(self.gpu)


class StagedKit(RankKit):
    """All but the second device are GPUs, whose exchanges without it go over NCCL."""

    comm_name = "mpi_staged"
    devices = tuple(Device("cpu" if index == 1 else "gpu", 0, index) for index in range(4))

    def comm(self) -> MpiStagedComm:
        found = MpiStagedComm(self.devices)
        found.attach(self.driver)
        return found

    def driver(self, device: Device) -> Any:
        return NumpyDriver(device) if device.type == "cpu" else super().driver(device)


def run_staged() -> None:
    """Run the kit, and an exchange of GPUs alone."""
    for row in StagedKit().parameters("moves"):
        StagedKit().test_moves(*row)
    kit, devices = StagedKit(), StagedKit.devices[2:]
    comm, exchange = kit.comm(), comm_cases.all_reduce((6,))(devices, as_dtype("float32"))
    bound = comms.BoundExchange(kit, comm, exchange, 0)
    bound.launch()
    bound.check()
    sent = {device for link in comm._direct.sent() for device in link}
    assert sent == ({*devices} if set(comm.local) & {*devices} else set())


def run() -> int:
    rank = world().rank
    RankKit.gpu = FakeGpu(rank)
    nccl.load_library = partial(MpiNccl, RankKit.gpu)
    nccl.probe_nccl = partial(Available, 1, "MPI")
    found = nccl.bootstrap()
    assert isinstance(found, Available)
    assert found.count == 4
    kit, count = RankKit(), 0
    for check in CHECKS:
        for row in kit.parameters(check):
            getattr(kit, f"test_{check}")(*row)
            count += 1
    run_staged()
    assert len(nccl.process_communicators().communicators) == len(
        {communicator.devices for communicator in nccl.process_communicators().communicators}
    )
    nccl.process_communicators().close()
    return count


if __name__ == "__main__":
    in_ranks(run)
