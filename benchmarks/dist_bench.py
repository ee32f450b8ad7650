"""Compare flow's collectives with the same calls of mpi4py, and with a shared-memory window.

    mpiexec -n 2 python benchmarks/dist_bench.py collectives
    mpiexec -n 2 python benchmarks/dist_bench.py windows

Ratios compare minima over interleaved rounds.  `bench_ddp.py` compares training.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from flow_core.sharding.topology import Device

SIZES = {4: 300, 4096: 200, 1 << 20: 10, 64 << 20: 1}
"""Numbers of bytes per device, and the number of launches per round for each."""

ROUNDS = 7


def collectives() -> None:
    from mpi4py import MPI

    from flow_dist.mpi.world import world

    comm, joined = MPI.COMM_WORLD, world()
    for nbytes, launches in SIZES.items():
        for name, (ours, theirs) in cases(comm, nbytes):
            best = [float("inf")] * 2
            for _ in range(ROUNDS):
                for which, call in enumerate((ours, theirs)):
                    best[which] = min(best[which], slowest(joined, call, launches))
            a, b = best
            line = f"{name:15}{nbytes:10} bytes{a * 1e6:12.1f} us{b * 1e6:12.1f} us of MPI"
            if comm.rank == 0:
                print(f"{comm.size} processes  {line}  ratio {a / b:5.2f}", flush=True)


def slowest(joined: Any, call: Callable[[], object], times: int) -> float:
    """Return the seconds per call until the last process finishes if all start together.

    The root of a broadcast may finish long before the receivers.
    """
    joined.gather(b"", "a round")
    own = seconds(call, times)
    return max(map(float, joined.gather_json(own)))


def seconds(call: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def cases(comm: Any, nbytes: int) -> Iterator[tuple[str, tuple[Callable[[], None], Any]]]:
    """Yield the name of each collective with flow's call and MPI's call."""
    from flow_core.testing import comm_cases

    count, p = nbytes // 4, comm.size
    whole, out = np.ones(count, np.float32), np.empty(count, np.float32)
    yield "all_reduce", (bound(comm_cases.all_reduce((count,))), lambda: comm.Allreduce(whole, out))
    yield "broadcast", (bound(comm_cases.broadcast(0, (count,))), lambda: comm.Bcast(out, 0))
    part = count // p
    if not part:
        return
    mine, full = np.ones(part, np.float32), np.ones(part * p, np.float32)
    even, each = [part] * p, part // p
    yield "all_gather", (bound(comm_cases.all_gather(even)), lambda: comm.Allgather(mine, full))
    scattered = bound(comm_cases.reduce_scatter(even))
    yield "reduce_scatter", (scattered, lambda: comm.Reduce_scatter_block(full, mine))
    row, column = full[: each * p], np.empty(each * p, np.float32)
    exchanged = bound(comm_cases.all_to_all(lambda s, t: each))
    yield "all_to_all", (exchanged, lambda: comm.Alltoall(row, column))


def bound(draft: Any, in_place: bool = False) -> Callable[[], None]:
    """Bind an exchange between the devices of all processes, in memory like that of a plan.

    If ``in_place``, the outputs overwrite the inputs, as in the all-reduces of a plan whose inputs
    have no other readers.
    """
    from flow_core.base.dtypes import float32
    from flow_dist.mpi.comm import MpiComm
    from flow_dist.mpi.world import world

    devices = tuple(Device("cpu", 0, i) for i in range(world().size))
    comm, exchange = MpiComm(devices), draft(devices, float32)

    def array(device: Device, type_: Any) -> Any:
        if device not in comm.local:
            return None
        arena = comm.arena(device, max(type_.nbytes, 64))
        found = arena.view(0, type_.shape, np.float32)
        found[...] = 0
        return found

    ends = (exchange.senders, exchange.inputs), (exchange.receivers, exchange.outputs)
    inputs, outputs = ([array(*end) for end in zip(*side, strict=True)] for side in ends)
    launches = comm.bind(exchange, inputs, inputs if in_place else outputs)

    def call() -> None:
        for launch in launches:
            launch()

    call()
    return call


class Window:
    """A manual all-reduce in an MPI window that all processes of a host share.

    Each process sums its part of all inputs; all processes can then read or copy the sums.
    """

    def __init__(self, comm: Any, count: int) -> None:
        from mpi4py import MPI

        self.comm, self.rank = comm, comm.rank
        self.shared = MPI.Win.Allocate_shared(8 * count, 4, comm=comm)
        self.shared.Lock_all()  # MPICH requires it before Sync
        rows = []
        for rank in range(comm.size):
            memory, _ = self.shared.Shared_query(rank)
            rows.append(np.frombuffer(memory, np.float32)[: 2 * count].reshape(2, count))
        self.given = [row[0] for row in rows]
        self.given[self.rank][:] = 1
        bounds = np.linspace(0, count, comm.size + 1).astype(int)
        self.parts = [slice(a, b) for a, b in pairwise(bounds)]
        self.sums = rows[0][1]
        self.own = np.ones(count, np.float32)

    def _meet(self) -> None:
        self.shared.Sync()
        self.comm.Barrier()
        self.shared.Sync()

    def left(self) -> None:
        """Compute the sums and leave one copy of them in the window for all processes."""
        self._meet()
        part = self.parts[self.rank]
        np.add(self.given[0][part], self.given[1][part], out=self.sums[part])
        for given in self.given[2:]:
            np.add(self.sums[part], given[part], out=self.sums[part])
        self._meet()

    def copied(self) -> None:
        """Compute the sums and copy them to each process."""
        self.left()
        np.copyto(self.own, self.sums)

    def end(self) -> None:
        """Free the memory collectively; until then, each process may access that of the others."""
        self.shared.Unlock_all()
        self.shared.Free()


def windows() -> None:
    """Compare flow's all-reduce with a shared window in the same run."""
    from mpi4py import MPI

    from flow_core.testing import comm_cases
    from flow_dist.mpi.world import world

    comm, joined = MPI.COMM_WORLD, world()
    for nbytes in (1 << 20, 64 << 20):
        window, draft = Window(comm, nbytes // 4), comm_cases.all_reduce((nbytes // 4,))
        best = {
            "ours in place": bound(draft, in_place=True),
            "ours": bound(draft),
            "window, sums left there": window.left,
            "copied": window.copied,
        }
        found = dict.fromkeys(best, float("inf"))
        for _ in range(ROUNDS):
            for name, call in best.items():
                found[name] = min(found[name], slowest(joined, call, SIZES[nbytes]))
        window.end()
        if comm.rank == 0:
            texts = [f"{name} {t * 1e3:.2f} ms" for name, t in found.items()]
            print(f"{comm.size} processes, all-reduce of {nbytes >> 20} MiB: {', '.join(texts)}")


if __name__ == "__main__":
    {"collectives": collectives, "windows": windows}[sys.argv[1]]()
