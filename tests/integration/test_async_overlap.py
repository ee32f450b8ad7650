"""Asynchronous jobs: feed, compute and callback of several steps overlap."""

import time
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

pytestmark = pytest.mark.timeout(60)  # a deadlock is a failure, not a hang

ONE = tp.Numpy.Placeholder((1,))


def one(value: float) -> Any:
    return np.array([value], np.float32)


def slow_job(asynchronous: bool, seconds: float, width: int | None = None) -> Any:
    """A job whose compute takes a while, as that of kernels that let other threads run."""
    config = flow.function_config()
    if width is not None:
        config.concurrency_width(width)

    def job(x: ONE) -> Any:
        return x + 1

    job.__annotations__["return"] = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy
    job = flow.global_function(type="predict", function_config=config)(job)
    executable = job.executable()
    launch = executable._launch
    executable._launch = lambda: (time.sleep(seconds), launch())
    return job


def busy_seconds(job: Any, asynchronous: bool, wait: float, steps: int) -> float:
    """Time of some steps whose feed and callback wait."""
    got: list[float] = []

    def callback(y: Any) -> None:
        time.sleep(wait)
        got.append(float(y[0]))

    job(one(0))
    flow.sync_default_session()
    started = time.perf_counter()
    for i in range(steps):
        time.sleep(wait)
        called = job(one(i))
        called(callback) if asynchronous else callback(called)
    flow.sync_default_session()
    seconds = time.perf_counter() - started
    assert got == [i + 1.0 for i in range(steps)]
    assert job.peak_in_flight <= job.config.get("concurrency_width")
    return seconds


def test_asynchronous_steps_overlap() -> None:
    slow, fast = (
        busy_seconds(slow_job(asynchronous, 0.02), asynchronous, 0.02, 25)
        for asynchronous in (False, True)
    )
    assert slow / fast >= 2.2, f"{slow:.3f} s against {fast:.3f} s"


def test_more_steps_in_flight_overlap_more() -> None:
    jobs = [slow_job(True, 0.01, width) for width in (1, 2, 4)]
    rounds = [[busy_seconds(job, True, 0.01, 15) for job in jobs] for _ in range(3)]
    one_wide, two_wide, four_wide = map(min, zip(*rounds, strict=True))
    assert one_wide > 1.3 * two_wide
    assert two_wide > 0.9 * four_wide


@pytest.mark.slow
def test_real_compute_overlaps_with_waiting() -> None:
    """The same with matrix products, which take as long as feed and callback wait."""

    def make(asynchronous: bool) -> Any:
        def job(x: ONE) -> Any:
            w = flow.get_variable("w", shape=(768, 768))
            for _ in range(6):
                w = flow.matmul(w, w)
            return x + 1 + flow.math.reduce_sum(w, axis=[0, 1])

        job.__annotations__["return"] = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy
        return flow.global_function(type="predict")(job)

    sync, overlapped = make(False), make(True)
    sync(one(0))
    wait = min(timed(lambda: sync(one(0))) for _ in range(5))
    ratios = [0.0]
    while max(ratios) < 2.2 and len(ratios) <= 3:  # once of three times will do
        alone = busy_seconds(sync, False, wait, 30)
        ratios.append(alone / busy_seconds(overlapped, True, wait, 30))
    assert max(ratios) >= 2.2, ratios


def timed(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
