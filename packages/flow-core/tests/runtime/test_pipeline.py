"""The actors of a session: order, bounds, errors, synchronous and asynchronous steps."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import processes
import pytest

from flow_core.base.changes import Changes
from flow_core.base.errors import JobError
from flow_core.runtime.pipeline import Credit, Pipeline, Step


class Work:
    """An executable that records concurrent execution."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.running = 0
        self.most = 0
        self.ran: list[Any] = []

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(self.seconds)
        self.ran.append(feeds[0])
        self.running -= 1
        return (feeds[0],)


def test_callbacks_are_ordered_and_steps_in_flight_are_bounded() -> None:
    pipeline, work, credit, got = Pipeline(), Work(0.001), Credit(3), []
    for i in range(30):
        step = Step(work, [i], credit, lambda s: got.append(s.results[0]))
        pipeline.submit(step)
    pipeline.sync()
    assert got == list(range(30))
    assert work.ran == list(range(30))
    assert credit.peak == 3
    pipeline.close()


class SlowHandOver(Changes):
    """Suspend the compute actor while it hands over a step, so that other threads run."""

    def wait_until(self, attempt: Callable[[], bool]) -> None:
        super().wait_until(attempt)
        if threading.current_thread().name == "flow-compute":
            with self.lock:
                self.notify()
            time.sleep(0.005)


def test_available_token_implies_a_free_slot() -> None:
    """A callback may end and the next step be fed before the compute actor resumes."""
    pipeline, work, credit = Pipeline(), Work(), Credit(1)
    pipeline._changes = SlowHandOver()
    for i in range(20):
        pipeline.submit(Step(work, [i], credit))
    pipeline.sync()
    assert work.ran == list(range(20))
    pipeline.close()


def test_two_threads_never_compute_concurrently() -> None:
    pipeline, work = Pipeline(), Work(0.001)

    def caller(base: int) -> None:
        credit = Credit(2)
        for i in range(10):
            pipeline.run(Step(work, [base + i], credit))

    threads = [threading.Thread(target=caller, args=(100 * t,)) for t in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(processes.scaled(20))
    assert len(work.ran) == 30
    assert work.most == 1
    pipeline.close()


def test_synchronous_step_waits_for_pending_steps() -> None:
    pipeline, work, credit = Pipeline(), Work(0.002), Credit(4)
    for i in range(4):
        pipeline.submit(Step(work, [i], credit))
    pipeline.run(Step(work, ["sync"], credit))
    assert work.ran == [0, 1, 2, 3, "sync"]
    pipeline.close()


def test_callback_error_is_raised_by_sync_with_its_traceback() -> None:
    pipeline, credit = Pipeline(), Credit(2)

    def broken(_: Step) -> None:
        raise ValueError("callback is broken")

    pipeline.submit(Step(Work(), [0], credit, broken))
    with pytest.raises(ValueError, match="callback is broken") as caught:
        pipeline.sync()
    assert "broken" in str(caught.traceback[-1])
    pipeline.sync()
    pipeline.close()


class Broken:
    """An executable that raises."""

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        raise ValueError("kernel is broken")


def test_error_of_a_synchronous_step_is_raised_once() -> None:
    pipeline = Pipeline()
    with pytest.raises(ValueError, match="kernel is broken"):
        pipeline.run(Step(Broken(), [0], Credit(1)))
    pipeline.sync()
    assert pipeline.in_flight == 0


class SlowlyDone(Step):
    """A step whose actor resumes late after the step ends."""

    @property
    def done(self) -> bool:
        return getattr(self, "ended", False)

    @done.setter
    def done(self, value: bool) -> None:
        self.ended = value
        time.sleep(0.02 * value)


def test_error_of_an_awaited_step_can_be_discarded() -> None:
    pipeline = Pipeline()
    step = SlowlyDone(Broken(), [0], Credit(1))
    pipeline.submit(step)
    while not step.done:
        time.sleep(0.001)
    assert isinstance(step.error, ValueError)
    pipeline.forget(step.error)
    pipeline.sync()
    pipeline.close()


def test_deadlocking_call_inside_a_callback_is_rejected() -> None:
    pipeline, credit, work = Pipeline(), Credit(1), Work()

    def again(_: Step) -> None:
        pipeline.submit(Step(work, [1], credit))

    pipeline.submit(Step(work, [0], credit, again))
    with pytest.raises(JobError, match="concurrency_width"):
        pipeline.sync()
    pipeline.close()


class Gate:
    """An executable whose step lasts until it is told to end."""

    def __init__(self) -> None:
        self.began, self.end = threading.Event(), threading.Event()

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        self.began.set()
        assert self.end.wait(processes.scaled(10))
        return ()


@pytest.mark.parametrize("one_caller", [True, False])
def test_a_second_caller_is_refused_where_processes_wait_for_each_other(one_caller: bool) -> None:
    """The order of two threads' steps may differ between processes; the error has both lines."""
    pipeline, gate, errors = Pipeline(), Gate(), list[JobError]()
    pipeline.one_caller = one_caller

    def other() -> None:
        try:
            pipeline.run(Step(Work(), [2], Credit(1)))
        except JobError as error:
            errors.append(error)

    first = threading.Thread(target=lambda: pipeline.run(Step(gate, [1], Credit(1))), name="one")
    second = threading.Thread(target=other, name="two")
    first.start()
    assert gate.began.wait(processes.scaled(10))
    second.start()
    if one_caller:
        second.join(processes.scaled(10))
    gate.end.set()
    first.join(processes.scaled(10))
    second.join(processes.scaled(10))
    assert len(errors) == one_caller
    for error in errors:
        assert error.attempted == "calling a job in thread 'two'"
        assert f"a step of thread 'one' (at {__file__}:" in str(error)
        assert str(error.at).startswith(__file__)
    pipeline.run(Step(Work(), [3], Credit(1)))
    pipeline.close()
