"""``flow verify --waits``: the proof that the steps of a plan end, in any number of processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from flow_core.comm.liveness import EVENT, EXCHANGE, ORDER, CircularWaitError, check_liveness
from flow_core.frontend.job.function import AnyJob
from flow_core.observe.tables import Table, duration, share
from flow_core.plan import Plan
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class Proof:
    """The waits of a plan's tasks, none of which form a circle."""

    processes: int  # the number of processes that divide the devices among themselves
    order: int  # how many tasks wait for the previous one of their stream
    events: int  # the number of waits for tasks of other streams
    exchanges: int  # the number of waits of exchanges between processes for previous ones
    seconds: float  # the processor time of the proof


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proofs for a job."""

    job: str
    line: str  # of the job's definition
    tasks: int
    streams: int
    compile_seconds: float  # the processor time of tracing and compiling the job
    # A proof for each number of processes; only of the smaller ones if there is a circle.
    proofs: tuple[Proof, ...]
    # The error that describes a circle of waits; None if there is none.
    circle: CircularWaitError | None = None

    def to_json(self) -> str:
        """Return everything as JSON text; a circle as the list of its waits."""
        proven = asdict(replace(self, circle=None))
        circle = [asdict(link) for link in self.circle.circle] if self.circle else []
        return json.dumps({"ok": not circle, **proven, "circle": circle}, indent=2)


def prove_waits(job: AnyJob) -> Proofs:
    """Compile a job, and prove for any number of processes that its steps end."""
    started = time.process_time()
    plan = job.compile().plan
    seconds = time.process_time() - started
    places = sorted({_place(arena.device) for arena in plan.arenas})
    proofs: list[Proof] = []
    circle = None
    try:
        for count in range(1, len(places) + 1):
            proofs.append(_proof(plan, places, count))
    except CircularWaitError as error:
        circle = error
    return Proofs(
        job.name,
        str(job.line or ""),
        len(plan.tasks),
        len(plan.streams) or 1,
        seconds,
        tuple(proofs),
        circle,
    )


def _place(device: Device) -> tuple[int, int]:
    return device.machine, device.index


def _proof(plan: Plan, places: list[tuple[int, int]], processes: int) -> Proof:
    ranks = {place: i * processes // len(places) for i, place in enumerate(places)}
    started = time.process_time()
    owner = None if processes == 1 else lambda device: ranks[_place(device)]
    count = check_liveness(plan, owner)
    seconds = time.process_time() - started
    return Proof(processes, count[ORDER], count[EVENT], count[EXCHANGE], seconds)


def waits_tables(found: Proofs) -> Iterator[Table]:
    """Yield the table that ``flow verify --waits`` prints."""
    title = (
        f"job {found.job!r} at {found.line}: {found.tasks:,} tasks on {found.streams:,} streams, "
        f"compiled in {duration(found.compile_seconds)}; no tasks wait for each other"
    )
    columns = ("processes", "order of streams", "events", "exchanges", "proof", "of compilation")
    rows = tuple(
        (
            str(proof.processes),
            f"{proof.order:,}",
            f"{proof.events:,}",
            f"{proof.exchanges:,}",
            duration(proof.seconds),
            share(proof.seconds, found.compile_seconds),
        )
        for proof in found.proofs
    )
    yield Table(title, columns, rows)
