"""Run the comm kit in this process, one of several that a test starts and MPI joins.

Arguments: "mpi", "staged", or "collectives" for MPI's collectives between any number of processes;
and the element types, by default all.
"""

import itertools
import sys
import time
from functools import partial

import numpy as np
from checking import in_ranks

from flow_core.base.config import Settings
from flow_core.base.dtypes import as_dtype
from flow_core.plugins.host import load_plugins
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit, comm_cases, comms
from flow_dist.mpi import comm
from flow_dist.mpi.comm import MpiComm
from flow_dist.mpi.world import world

CHECKS = (
    "is_a_comm", "moves", "is_bound_once", "sums_in_place", "counts_what_it_sends",
    "all_hold_the_same_bits", "refuses_what_does_not_fit",
)  # fmt: skip


class MpiKit(CommKit):
    comm_name = "mpi"

    def registry(self):
        return load_plugins(Settings(), ())


class ArenaKit(MpiKit):
    """Arrays lie in the memory that plans have, which neighbors read and fill where it is."""

    def allocate(self, comm, device, nbytes):
        arena = comm.arena(device, nbytes)
        return super().allocate(comm, device, nbytes) if arena is None else arena


class StagedKit(MpiKit):
    """CPUs, and devices whose memory the host can only copy."""

    comm_name = "mpi_staged"
    devices = tuple(Device("cpu" if i == 1 else "opaque", 0, i) for i in range(4))

    def registry(self):
        from opaque_devices import opaque_registry

        return opaque_registry()


def run(name: str, dtypes: tuple[str, ...]) -> int:
    kit, count = StagedKit() if name == "staged" else MpiKit(), 0
    type(kit).dtypes = dtypes or MpiKit.dtypes
    if name == "collectives":
        comm.MANY_RANKS = 2
    for check in CHECKS:
        for row in kit.parameters(check):
            getattr(kit, f"test_{check}")(*row)
            count += 1
    if name != "staged":
        large()
        ahead()
        rounded()
    return count


def large() -> None:
    """Boxes that travel by themselves, contiguous ones and others, at several sizes."""
    for n in (4096, 30000):
        _large(n)


def _large(n: int) -> None:
    body(comm_cases.all_reduce((n,), (3, n), combine="max"), n)
    for some in (1, 2):
        body(comm_cases.all_reduce((n,), (3, n)), n, some)
    body(comm_cases.all_gather((n, n + 1, 2 * n, n - 1)), n)
    body(comm_cases.reduce_scatter((n, n + 1, 2 * n, n - 1)), n)
    for shape in ((n, 3), (3, n), (5, n)):
        body(comm_cases.broadcast(1, shape), n)
    body(comm_cases.all_to_all(lambda s, t: n * ((s + t) % 3)), n)
    body(comm_cases.gather(3, (n, 0, 2 * n, n)), n)


def ahead() -> None:
    """Many launches of small boxes, where now this process is late and now another one.

    A rank that only sends runs ahead until all slots are full.
    """
    for n in (1, 1500, 5000):
        for draft in (
            comm_cases.broadcast(1, (n,)),
            comm_cases.gather(3, (n, 0, 2 * n, n)),
            comm_cases.all_to_all(lambda s, t, n=n: n * (s < t)),
            comm_cases.all_reduce((n,)),
        ):
            exchange = draft(CommKit.devices, as_dtype("float32"))
            run = comms.BoundExchange(MpiKit(), MpiComm(CommKit.devices), exchange, n)
            for step in range(50):
                run.refill(step)
                run.launch()
                if step % 17 == 5 * world().rank:
                    time.sleep(2e-3)
                run.check()


def rounded() -> None:
    """Sums that are rounded: parts are added in rank order, whatever sends them."""
    rng = np.random.default_rng(8)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        for n, groups in itertools.product((3, 5000), (slice(4), slice(2, None, -1))):
            draft = comm_cases.all_reduce((n,), (2, n))
            exchange = draft(CommKit.devices[groups], as_dtype(dtype))
            run = comms.BoundExchange(MpiKit(), MpiComm(CommKit.devices), exchange, n)
            shapes = [type_.shape for type_ in exchange.inputs]
            run.refill_with([rng.normal(size=s).astype(as_dtype(dtype).numpy) for s in shapes])
            run.launch()
            run.check()


def body(draft, n: int, in_place: int = 0) -> None:
    exchange = draft(CommKit.devices, as_dtype("float32"))
    for kit in (MpiKit(), ArenaKit()):
        run = comms.BoundExchange(kit, MpiComm(CommKit.devices), exchange, n, in_place)
        for step in range(3):
            run.refill(step)
            run.launch()
            run.check()


if __name__ == "__main__":
    np.seterr(all="ignore")
    in_ranks(partial(run, sys.argv[1], tuple(sys.argv[2:])))
