"""The number of concurrent batches."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

import processes
import pytest

from flow_core.base.errors import ConfigError
from flow_core.base.thread_budget import Cores
from flow_core.base.thread_pools import process_budget
from flow_data.cli.report import text_report
from flow_data.loading.stats import LoaderStats
from flow_data.loading.workers import WorkerLimits, Workers

BUSY = Cores(4, "a test", kernels=4, products=4, loaders=1)
"""Steps that leave no core idle."""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOW_DATA_WORKERS", raising=False)


@pytest.fixture
def crew() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.stop()


def test_plan_sets_the_number_unless_the_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerLimits.from_cores(BUSY) == WorkerLimits(1, 4, "4 cores")
    assert WorkerLimits.from_cores(Cores(64, "a test", 8, 8, 56)).computing == 16
    assert WorkerLimits.from_cores(Cores()).waiting == min(16, process_budget().count)
    monkeypatch.setenv("FLOW_DATA_WORKERS", "5")
    assert WorkerLimits.from_cores(BUSY) == WorkerLimits(5, 5, "FLOW_DATA_WORKERS")


def test_invalid_numbers_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_DATA_WORKERS", "all")
    with pytest.raises(ConfigError, match="reading FLOW_DATA_WORKERS"):
        WorkerLimits.from_cores(BUSY)


class Batches:
    """Jobs that run until the test releases one of them."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def __call__(self) -> None:
        self.begun.release()
        self.may_end.acquire(timeout=processes.scaled(120))

    def begin(self, count: int) -> bool:
        """Return whether the given number of further jobs starts."""
        return all(self.begun.acquire(timeout=processes.scaled(120)) for _ in range(count))


def test_loaders_use_the_cores_that_a_step_leaves_until_it_waits(crew: Workers) -> None:
    batches = Batches()
    futures = [crew.submit(batches, WorkerLimits.from_cores(BUSY)) for _ in range(8)]
    assert batches.begin(1)
    assert not batches.begun.acquire(timeout=0.05)
    assert crew.active == 1
    with crew.step_waiting():
        assert batches.begin(3)
        assert not batches.begun.acquire(timeout=0.05)
        assert crew.active == 4
    for _ in range(3):  # the step resumes: a finished job does not start another
        batches.may_end.release()
    assert not batches.begun.acquire(timeout=0.05)
    for _ in range(5):
        batches.may_end.release()
    assert batches.begin(4)
    for future in futures:
        future.result()


def test_several_loaders_share_the_remaining_cores(crew: Workers) -> None:
    one, other = Batches(), Batches()
    crew.submit(one, WorkerLimits.from_cores(BUSY))
    crew.submit(other, WorkerLimits.from_cores(BUSY))
    assert one.begin(1)
    assert not other.begun.acquire(timeout=0.05)
    one.may_end.release()
    assert other.begin(1)
    other.may_end.release()


def test_error_of_a_job_does_not_affect_others(crew: Workers) -> None:
    def fails() -> None:
        raise ValueError("no batch")

    failed, fine = (
        crew.submit(fails, WorkerLimits.from_cores(BUSY)),
        crew.submit(list, WorkerLimits.from_cores(BUSY)),
    )
    with pytest.raises(ValueError, match="no batch"):
        failed.result()
    fine.result()
    assert fine.done()


def test_pending_jobs_do_not_run_after_shutdown(crew: Workers) -> None:
    batches = Batches()
    first, later = (crew.submit(batches, WorkerLimits.from_cores(BUSY)) for _ in range(2))
    assert batches.begin(1)
    crew.stop(seconds=0.01)
    assert later.cancelled()
    batches.may_end.release()
    first.result()
    assert first.done()


def test_statistics_count_active_jobs() -> None:
    stats = LoaderStats("reader", 6, limits=WorkerLimits.from_cores(BUSY))
    text = text_report([stats])
    assert "6 slots, 1 in work while a step computes, 4 while one waits (by 4 cores)" in text


INTERRUPTED = """
import signal
from flow_core.base.thread_budget import Cores
from flow_data.loading.workers import WorkerLimits, Workers

crew, share, total = Workers(), WorkerLimits.from_cores(Cores(2, "a test", 1, 1, 1)), [0]

def count():
    total[0] += 1

armed = False

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
interrupted = 0
for _ in range(3000):
    try:
        armed = True
        with crew.step_waiting():
            crew.submit(count, share).result()
        armed = False
    except KeyboardInterrupt:
        interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
last = crew.submit(count, share)
last.result()
crew.stop()
assert interrupted > 10, interrupted
assert not crew.active and not crew._waiting
print("ended")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="interrupts by a timer")
def test_interrupts_leave_no_lock_held() -> None:
    """An interrupt during a wait for a standard-library future would hang the program."""
    done = processes.run([sys.executable, "-c", INTERRUPTED], timeout=300)
    assert done.stdout == "ended\n", done.stderr
