"""Run all checks of the NCCL communicator that need GPUs, in a few minutes, and print one table.

A single process uses all GPUs of the machine; several processes use one GPU each.  Without a GPU,
the script prints what is missing and exits with status 1.

    python benchmarks/nccl_checks.py
    flow-dist run -n 4 benchmarks/nccl_checks.py
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flow_core.base.dtypes import ALL, as_dtype, float32
from flow_core.base.errors import FlowError
from flow_core.comm.exchange import Exchange
from flow_core.device import strided
from flow_core.plugins.specs import Unavailable
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit, comms
from flow_core.testing import comm_cases as kinds
from flow_cuda.driver.capture import describe
from flow_cuda.driver.gpu import GpuDriver
from flow_dist.control import waiting
from flow_dist.control.client import JobStoppedError
from flow_dist.nccl import comm as nccl
from flow_dist.nccl.comm import NcclComm
from flow_dist.nccl.communicators import Communicators
from flow_dist.nccl.guard import Guard
from flow_dist.nccl.library import version_text
from flow_dist.nccl.types import DTYPES, op_of

DTYPE_NAMES = tuple(dtype.name for dtype in ALL if dtype.name != "char")
LARGE, SMALL = 1 << 24, 1


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    result: str
    note: str = ""


@dataclass
class Setup:
    """The devices and processes of the checks.

    Attributes:
        devices: all devices.
        drivers: drivers of the local devices.
        groups: the NCCL communicators of this process.
        world: the processes; None if there is only one.
    """

    devices: tuple[str, ...]
    drivers: dict[str, GpuDriver]
    groups: Communicators
    world: Any = None
    kit: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.kit = Kit()
        self.kit.setup = self

    @property
    def is_first(self) -> bool:
        return self.world is None or self.world.rank == 0

    def comm(self, ordered: bool = False) -> NcclComm:
        return NcclComm(self.devices, self.groups, ordered=ordered)

    def array(self, device: Device, value: Any) -> Any:
        driver = self.drivers[device]
        array = driver.allocate(value.nbytes).view(0, value.shape, value.dtype)
        driver.copy_in(array, value)
        return array

    def meet(self, what: str) -> None:
        """Wait for all processes."""
        for driver in self.drivers.values():
            driver.hardware.synchronize(driver.hardware.record(driver.hardware.compute))
        if self.world is not None:
            self.world.gather(b"", what)


class Kit(CommKit):
    """A `CommKit` whose arrays are on devices."""

    setup: Setup

    def driver(self, device: Device) -> GpuDriver:
        return self.setup.drivers[device]


# ------------------------------------------------------------------------------------ checks


def environment(setup: Setup) -> Iterator[Row]:
    """Report versions and devices."""
    library = setup.groups.library
    yield Row("date", time.strftime("%Y-%m-%d"))
    yield Row("NCCL", version_text(library.version), f"over {library.name}")
    yield Row("devices", str(len(setup.devices)), f"{len(setup.drivers)} of this process")


def alone(setup: Setup) -> Iterator[Row]:
    """Check every primitive with every element type, on a communicator for one device."""
    device = next(iter(setup.drivers))
    driver, library = setup.drivers[device], setup.groups.library
    bench = setup.array(device, np.zeros(1, np.float32)).copier
    unique_id = library.unique_id()
    end = bench.within(lambda: library.join(1, unique_id, 0))
    rng, wrong = np.random.default_rng(0), []
    for name in DTYPE_NAMES:
        dtype = as_dtype(name)
        value = rng.integers(0, 2, 100).astype(dtype.numpy)
        given = setup.array(device, value)
        kind, op = DTYPES[name], op_of("sum", dtype)
        for primitive in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "pair"):
            made = setup.array(device, np.zeros_like(value))
            rest = (op,) if primitive in ("all_reduce", "reduce_scatter") else ()
            launch = _alone(bench, library, end, primitive, given, made, (kind, *rest))
            driver.compile([launch])()
            if not np.array_equal(driver.copy_out(made), value):
                wrong.append(f"{primitive} {name}")
    library.destroy(end)
    yield Row("one device", "FAILED" if wrong else "passed", ", ".join(wrong))


def _alone(
    bench: Any, library: Any, end: Any, primitive: str, given: Any, made: Any, rest: Sequence[int]
) -> Any:
    count = given.size

    def call(stream: int) -> None:
        library.group_start()
        if primitive == "pair":
            library.primitive("send", end)(given.address, count, *rest, 0, stream)
            library.primitive("receive", end)(made.address, count, *rest, 0, stream)
        else:
            address = (given.address, made.address)
            library.primitive(primitive, end)(*address, count, *rest, stream)
        library.group_end()

    return bench.foreign(call, primitive, [strided(given)], [strided(made)])


def cases(devices: Sequence[str], dtype: Any) -> Iterator[Exchange]:
    """Yield all collectives, with even and uneven parts that are contiguous or columns."""
    p = len(devices)
    even, uneven = [3] * p, [(5 * i + 2) % 7 for i in range(p)]
    drafts = (
        kinds.all_reduce((4, 3)), kinds.all_reduce((3,), (2, 2), (), (5,), combine="max"),
        kinds.all_gather(even), kinds.all_gather(uneven), kinds.columns,
        kinds.reduce_scatter(even), kinds.reduce_scatter(uneven, "min"), kinds.reduced_columns,
        kinds.all_to_all(lambda s, t: 2), kinds.all_to_all(kinds.irregular), kinds.transpose,
        kinds.gather(p - 1, uneven), kinds.scatter(0, uneven), kinds.broadcast(p - 1, (2, 3)),
        kinds.reduce_to(0, (3, 2)), kinds.send_recv, kinds.pads("max"),
    )  # fmt: skip
    for number, draft in enumerate(drafts):
        yield replace(draft(devices, dtype), name=f"check{number}")


def exchanges(setup: Setup) -> Iterator[Row]:
    """Check every exchange with every element type, in NCCL's order and in the plan's order."""
    for ordered in (False, True):
        count = 0
        for name in DTYPE_NAMES:
            comm = setup.comm(ordered)
            for exchange in cases(setup.devices, as_dtype(name)):
                run = comms.BoundExchange(setup.kit, comm, exchange, count)
                for seed in range(2):
                    run.refill(seed)
                    run.launch()
                    run.check()
                count += 1
        yield Row(f"exchanges{', in order' * ordered}", "passed", f"{count} cases")


def captured(setup: Setup) -> Iterator[Row]:
    """Check that exchanges are captured as one graph per device, and that replays move new data."""
    comm, driver = setup.comm(), next(iter(setup.drivers.values()))
    runs = [comms.BoundExchange(setup.kit, comm, e, 0) for e in cases(setup.devices, float32)]
    step = driver.compile([launch for run in runs for launch in run._launches])
    for number in range(5):
        for run in runs:
            run.refill(number)
        comm.before_step()
        step()
        setup.meet(f"step {number}")
        comm.after_step()
        for run in runs:
            run.check()
    parts = describe(step.parts).replace("\n", "; ")
    yield Row("captured", "passed", parts if len(setup.drivers) == 1 else "not: several devices")


def repeatable(setup: Setup) -> Iterator[Row]:
    """Check that floating-point sums are bit-identical on all devices and in all runs."""
    exchange = kinds.all_reduce((LARGE // 16,))(setup.devices, float32)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=LARGE // 16).astype("f4") for _ in setup.devices]
    for ordered in (False, True):
        run = comms.BoundExchange(setup.kit, setup.comm(ordered), exchange, 0)
        run.refill_with(data)
        found = []
        for _ in range(3):
            run.launch()
            found += [run.host(device, out) for device, out in run.local_outputs()]
        same = all(np.array_equal(found[0], other) for other in found)
        want = sum(data[1:], data[0])
        exact = np.array_equal(found[0], want)
        result = "passed" if same and (exact or not ordered) else "FAILED"
        note = "the plan's bits" if exact else "bits of NCCL's order"
        yield Row(f"same bits{', in order' * ordered}", result, note)


def speed(setup: Setup) -> Iterator[Row]:
    """Time an all-reduce, both queued and replayed from a graph."""
    driver = next(iter(setup.drivers.values()))
    for size in (SMALL, LARGE):
        exchange = kinds.all_reduce((size,))(setup.devices, float32)
        run = comms.BoundExchange(setup.kit, setup.comm(), exchange, 0)
        step = driver.compile(run._launches)
        times = {}
        for name, call in (("queued", run.launch), ("step", step)):
            call()
            call()
            times[name] = _best(setup, call)
        text = ", ".join(f"{name} {seconds * 1e6:.1f} us" for name, seconds in times.items())
        nbytes = 2 * (len(setup.devices) - 1) / len(setup.devices) * size * 4
        rate = f"{nbytes / times['step'] / 1e9:.1f} GB/s on the bus"
        yield Row(f"all-reduce, {4 * size} bytes", text, rate)


def _best(setup: Setup, call: Callable[[], object], repeats: int = 5, count: int = 20) -> float:
    found = []
    for number in range(repeats):
        setup.meet(f"round {number}")
        start = time.perf_counter()
        for _ in range(count):
            call()
        setup.meet(f"round {number} is over")
        found.append((time.perf_counter() - start) / count)
    return min(found)


def abort(setup: Setup) -> Iterator[Row]:
    """Check that the guard frees a device that waits for ranks that never arrive.

    This check runs last because communicators are unusable afterwards.
    """
    exchange = kinds.all_reduce((SMALL,))(setup.devices, float32)
    comm = setup.comm()
    run = comms.BoundExchange(setup.kit, comm, exchange, 0)
    run.launch()
    setup.meet("before the abort")
    guard = Guard(setup.groups, poll=0.1)
    if setup.is_first:
        run.launch()
        started = time.perf_counter()
    waiting.VERDICT.error = JobStoppedError("checking", found="a rank that does not arrive")
    for driver in setup.drivers.values():
        driver.hardware.synchronize(driver.hardware.record(driver.hardware.compute))
    seconds = time.perf_counter() - started if setup.is_first else 0.0
    try:
        while not any(communicator.error for communicator in setup.groups.communicators):
            time.sleep(0.05)
        comm.after_step()
    except JobStoppedError:
        yield Row("abort", "passed", f"the device was released after {seconds:.2f} s")
    else:
        yield Row("abort", "FAILED", "the results of a broken step were returned")
    guard.close()


CHECKS: tuple[Callable[[Setup], Iterator[Row]], ...] = (environment, alone)
TOGETHER = (exchanges, captured, repeatable, speed)


def rows_of(setup: Setup) -> Iterator[Row]:
    """Yield all rows, including those that need several devices if there are several."""
    several = len(setup.devices) > 1
    for check in (*CHECKS, *(TOGETHER if several else ())):
        yield from guarded(check, setup)
    if not several:
        yield Row("exchanges", "skipped", "there is one device")
    elif setup.world is None:
        yield Row("abort", "skipped", "needs several processes: flow-dist run -n 2")
    else:
        yield from guarded(abort, setup)


def guarded(check: Callable[[Setup], Iterator[Row]], setup: Setup) -> Iterator[Row]:
    """Yield the rows of a check; an exception becomes a row."""
    try:
        yield from check(setup)
    except Exception as error:  # noqa: BLE001 - the other checks still run
        text = str(error).strip().splitlines()[:3]
        yield Row(check.__name__, "FAILED", f"{type(error).__name__}: {' '.join(text)}")


def found() -> Setup | str:
    """Return the setup of the checks, or the reason why they cannot run."""
    from flow_core.plugins.host import default_registry

    registry = default_registry()
    for verdict in (registry.probe("gpu"), nccl.bootstrap()):
        if isinstance(verdict, Unavailable):
            return f"{verdict.reason}; {verdict.hint}"
    groups = nccl.process_communicators()
    world = registry.world()
    hosts = [socket.gethostname().encode()]
    if world is not None:
        hosts = list(world.gather(hosts[0], "hosts"))
        world.arrange(len(set(hosts)))
        each = len(hosts) // len(set(hosts))
    else:
        each = registry.probe("gpu").count
    devices = tuple(Device("gpu", m, i) for m in range(len(set(hosts))) for i in range(each))
    local = [device for device in devices if groups.owns(device)]
    drivers = {d: registry.driver(d) for d in local}
    return Setup(devices, drivers, groups, world)


def main() -> int:
    """Print the table; return status 0 if nothing failed."""
    try:
        setup = found()
    except FlowError as error:
        setup = str(error)
    if isinstance(setup, str):
        print(f"NCCL  missing  {setup}")
        return 1
    failed = False
    for row in rows_of(setup):
        failed |= row.result == "FAILED"
        out = sys.stdout if setup.is_first else sys.stderr
        if setup.is_first or row.result == "FAILED":
            print(f"{row.name:28}  {row.result:40}  {row.note}".rstrip(), file=out, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
