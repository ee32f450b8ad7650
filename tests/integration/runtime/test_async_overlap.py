"""Asynchronous jobs: feed, compute and callback of several steps overlap.

Steps wait for one another here: what does not overlap never ends, however slow the machine.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp

PATIENCE = processes.scaled(60)
"""Seconds after which what should happen does not."""
pytestmark = pytest.mark.timeout(5 * PATIENCE)  # a deadlock is a failure, not a hang

ONE = tp.Numpy.Placeholder((1,))


def one(value: float) -> Any:
    return np.array([value], np.float32)


def make_job(width: int | None = None, products: int = 0) -> Any:
    """An asynchronous job, which may multiply large matrices."""
    config = flow.function_config()
    if width is not None:
        config.concurrency_width(width)

    @flow.global_function(type="predict", function_config=config)
    def job(x: ONE) -> tp.Callback[tp.Numpy]:
        if not products:
            return x + 1
        w = flow.get_variable("w", shape=(768, 768)) * x  # computed in each step
        for _ in range(products):
            w = flow.matmul(w, w)
        return x + 1 + flow.math.reduce_sum(w, axis=[0, 1])

    return job


@contextmanager
def computing(job: Any, around: Callable[[int, Callable[[], object]], object]) -> Iterator[None]:
    """Has ``around`` run the launch of each step, whose number it is told."""
    executable = job.executable()
    launch, numbers = executable._launch, iter(range(1000))
    executable._launch = lambda: around(next(numbers), launch)
    yield
    flow.sync_default_session()
    executable._launch = launch


def test_asynchronous_steps_overlap() -> None:
    """A step is fed while the one before it computes and the one before that is called back."""
    steps, got, job = 12, [], make_job()
    meetings = {i: threading.Barrier(3, timeout=PATIENCE) for i in range(2, steps)}

    def meet(number: int) -> None:
        if number in meetings:
            meetings[number].wait()

    def called_back(y: Any) -> None:
        meet(len(got) + 2)
        got.append(float(y[0]))

    with computing(job, lambda number, launch: (meet(number + 1), launch())):
        for i in range(steps):
            meet(i)
            job(one(i))(called_back)
    assert got == [i + 1.0 for i in range(steps)]
    assert job.peak_in_flight <= job.config.get("concurrency_width")


@pytest.mark.parametrize("width", [1, 2, 4])
def test_as_many_steps_are_in_flight_as_are_allowed(width: int) -> None:
    got, job = [], make_job(width)
    fed = threading.Event()

    def wait_for_feeds(number: int, launch: Callable[[], object]) -> None:
        assert fed.wait(PATIENCE)
        launch()

    with computing(job, wait_for_feeds):
        for i in range(10):
            if i == width:
                fed.set()  # no other step can be fed before one ends
            job(one(i))(lambda y: got.append(float(y[0])))
    assert got == [i + 1.0 for i in range(10)]
    assert job.peak_in_flight == width


@pytest.mark.slow
def test_real_compute_overlaps_with_callbacks() -> None:
    """Matrix products let other threads run: a callback sees the next step begin before its end."""
    steps, seen, job = 20, [], make_job(products=6)
    begun, ended = ([threading.Event() for _ in range(steps + 1)] for _ in range(2))

    def note(number: int, launch: Callable[[], object]) -> None:
        begun[number].set()
        launch()
        ended[number].set()

    def called_back(_: Any) -> None:
        number = len(seen) + 1
        assert number == steps or begun[number].wait(PATIENCE)
        seen.append(number < steps and not ended[number].is_set())

    with computing(job, note):
        for i in range(steps):
            job(one(i))(called_back)
    assert len(seen) == steps
    assert any(seen)
