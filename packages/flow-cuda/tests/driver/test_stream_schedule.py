"""Work on streams of several devices has all necessary ordering and no other."""

from itertools import combinations
from typing import Any

import numpy as np
from cuda_simulator.hardware import Machine, Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_cuda.device.hardware import Access
from flow_cuda.device.launch import CopyLaunch, Queued, ZeroLaunch
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.driver.peers import SideStreamWork
from flow_cuda.driver.stream_schedule import schedule_streams

SIZE = 12


def drivers(count: int) -> list[GpuDriver]:
    machine = Machine()
    return [GpuDriver(Simulator(i, machine=machine), chunk=64) for i in range(count)]


class Works:
    """Copies and fills of small arrays, one array per device."""

    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self.drivers = drivers(3)
        self.arrays = [d.allocate(SIZE).view(0, (SIZE,), np.uint8) for d in self.drivers]
        for driver, array in zip(self.drivers, self.arrays, strict=True):
            driver.copy_in(array, np.arange(SIZE, dtype=np.uint8) + 20 * driver.hardware.index)
        self.works = [self.work(*row) for row in rows]

    def work(self, kind: int, device: int, at: int, other: int, start: int, size: int) -> Queued:
        hardware = self.drivers[device].hardware
        size = min(size, SIZE - at, SIZE - start)
        target = self.arrays[device].part(at, (size,), np.uint8)
        source = self.arrays[other].part(start, (size,), np.uint8)
        if kind == 0 or (device == other and abs(at - start) < size):
            return ZeroLaunch(hardware, target)
        made = CopyLaunch(hardware, target, source)
        return SideStreamWork(made) if kind == 2 else made

    def results(self) -> list[Any]:
        return [d.copy_out(x).tolist() for d, x in zip(self.drivers, self.arrays, strict=True)]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 2), st.integers(0, SIZE - 1), st.integers(0, 2),
        st.integers(0, SIZE - 1), st.integers(1, 6),
    ),
    max_size=14,
)  # fmt: skip


def in_order(rows: list[tuple[int, ...]]) -> list[Any]:
    """Run the same operations with numpy, one after the other."""
    arrays = [np.arange(SIZE, dtype=np.uint8) + 20 * i for i in range(3)]
    for kind, device, at, other, start, size in rows:
        size = min(size, SIZE - at, SIZE - start)
        zero = kind == 0 or (device == other and abs(at - start) < size)
        arrays[device][at : at + size] = 0 if zero else arrays[other][start : start + size].copy()
    return [x.tolist() for x in arrays]


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_any_work_matches_sequential_execution(rows: list[tuple[int, ...]]) -> None:
    """Queued, captured and replayed; the simulator rejects unordered accesses."""
    case = Works(rows)
    step = case.drivers[0].compile(case.works)
    want = in_order(rows)
    step()
    assert case.results() == want
    for _ in range(2):
        for driver, array in zip(case.drivers, case.arrays, strict=True):
            driver.copy_in(array, np.arange(SIZE, dtype=np.uint8) + 20 * driver.hardware.index)
        step()
        assert case.results() == want
    logs = [line for d in case.drivers for line in d.hardware.log if line.startswith("replay")]
    assert len(logs) == (2 if rows else 0), "one replay per step, for all devices"


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_every_wait_is_necessary(rows: list[tuple[int, ...]]) -> None:
    """If any wait is removed, two conflicting operations are unordered."""
    case = Works(rows)
    made = schedule_streams(case.works, case.drivers[0].hardware)
    lanes = [work.lane for work in made.works]
    waits = [set(work.waits) for work in made.works]
    before = closure(lanes, waits)
    accesses = [work.touched() for work in case.works]
    for i, j in combinations(range(len(rows)), 2):
        assert not meets(accesses[i], accesses[j]) or i in before[j]
    for j, row in enumerate(waits):
        for i in row:
            less = [w - {i} if k == j else w for k, w in enumerate(waits)]
            found = closure(lanes, less)
            assert any(
                meets(accesses[a], accesses[b]) and a not in found[b]
                for a, b in combinations(range(len(rows)), 2)
            )


def closure(lanes: list[int], waits: list[set[int]]) -> list[set[int]]:
    found: list[set[int]] = []
    for position, row in enumerate(waits):
        own = {i for i in range(position) if lanes[i] == lanes[position]}
        found.append(set().union(own | row, *(found[i] for i in own | row)))
    return found


def meets(a: Access, b: Access) -> bool:
    pairs = [(x, y) for x in a.writes for y in (*b.reads, *b.writes)]
    pairs += [(x, y) for x in a.reads for y in b.writes]
    return any(x[0] < y[1] and y[0] < x[1] for x, y in pairs)
