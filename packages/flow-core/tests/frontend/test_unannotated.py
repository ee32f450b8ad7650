"""Jobs of the core alone: without an annotation package, with handles as results."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import processes
import pytest

from flow_core.api import math
from flow_core.api.session import job as flow
from flow_core.base.config import Settings
from flow_core.base.errors import JobError
from flow_core.frontend.job.function import JobFunction, defined_jobs
from flow_core.frontend.session.session import Session, default_session
from flow_core.frontend.trace.results import LocalBlob
from flow_core.plugins.host import default_registry
from flow_core.runtime.pipeline import Credit, Step

PLACEHOLDER = flow.FixedTensorDef((2,))


def make_double() -> Any:
    def job(x=PLACEHOLDER):
        return x * 2

    return flow.global_function(type="predict")(job)


X = np.array([1, 2], np.float32)


def test_handles_return_results() -> None:
    job = make_double()
    np.testing.assert_array_equal(job(X).get().numpy(), [2, 4])
    np.testing.assert_array_equal(job(X).numpy(), [2, 4])
    got: list[Any] = []
    job(X).async_get(got.append)
    flow.sync_default_session()
    assert isinstance(got[0], LocalBlob)


def test_handle_behaves_like_its_array() -> None:
    blob = LocalBlob(np.array([[1.0, 2.0]], np.float32))
    assert blob.shape == (1, 2)
    assert blob.dtype == np.float32
    assert len(blob) == 1
    assert blob[0, 1] == 2
    assert np.asarray(blob, np.int32).tolist() == [[1, 2]]
    assert blob.sum() == 3
    assert blob.parallel_num() == 1
    assert not blob.is_dynamic
    assert [a.tolist() for a in blob.numpy_list()] == [[[1.0, 2.0]]]
    assert blob.numpy_lists()[0][0] is blob.ndarray() is blob.ndarray_list()[0]
    assert repr(blob).startswith("LocalBlob(array(")


def test_handle_operators_are_those_of_its_array() -> None:
    def blob(*numbers: float) -> Any:
        return LocalBlob(np.array(numbers, np.float32))

    both = blob(1, 2)
    assert (both + 1).tolist() == (1 + both).tolist() == [2, 3]
    assert (X + both).tolist() == [2, 4]
    assert (both - blob(1, 1)).tolist() == [0, 1]
    assert (-both / 2).tolist() == [-0.5, -1]
    assert (both > 1).tolist() == [False, True]
    assert (both == blob(1, 3)).tolist() == [True, False]
    assert float(blob(1.5)) == 1.5
    assert "%.2f" % blob(1.5) == "1.50"  # noqa: UP031 - used by older programs
    with pytest.raises(ValueError, match="size 1"):
        float(both)
    assert [float(number) for number in both] == [1, 2]
    assert 2 in both
    assert int(LocalBlob(np.array(3))) == [0, 1, 2, 3][LocalBlob(np.array(3))] == 3
    assert bool(blob(0)) is False
    assert both.ndarray_list_[0] is both.numpy()
    assert {both: 1}[both] == 1
    total = 0.0
    for loss in (both, both):
        total += loss
    assert np.asarray(total).tolist() == [2, 4]
    both[0] = 5
    both *= 2
    assert both.tolist() == [10, 4]


def test_sessions_are_independent() -> None:
    def job(x=PLACEHOLDER):
        w = flow.get_variable("w", shape=(2,))
        return x + w

    mine = Session(default_registry(), Settings.from_env())
    first = JobFunction(job, "predict", session=mine)
    second = JobFunction(job, "predict")
    mine.assign({"w": X})
    np.testing.assert_array_equal(first(X).get().numpy(), X + X)
    np.testing.assert_array_equal(second(X).get().numpy(), X)
    assert mine.jobs == [first]
    assert list(defined_jobs()) == [second]
    mine.close()
    with pytest.raises(JobError, match="a session that is closed"):
        mine.pipeline.submit(Step(Never(), (), Credit(1)))


class Never:
    """A job that a closed session must not run."""

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        raise AssertionError("a closed session ran a step")


def test_job_is_traced_once_by_concurrent_callers() -> None:
    traced: list[str] = []
    start = threading.Barrier(4)

    def job(x=PLACEHOLDER):
        traced.append(threading.current_thread().name)
        return math.relu(x)

    shared = flow.global_function(type="predict")(job)
    results: list[Any] = []

    def call() -> None:
        start.wait(processes.scaled(10))
        results.append(shared(X).get().numpy())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(processes.scaled(20))
    assert len(traced) == 1
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, X)


def test_synchronous_steps_start_no_threads() -> None:
    before = threading.active_count()

    def job(x=PLACEHOLDER) -> None:
        flow.watch(x, seen.append)

    seen: list[Any] = []
    flow.global_function(type="predict")(job)(X)
    assert len(seen) == 1
    assert threading.active_count() == before


def test_clearing_ends_the_threads() -> None:
    before = threading.active_count()
    job = make_double()
    job(X).get()
    assert threading.active_count() == before + 2
    flow.clear_default_session()
    assert threading.active_count() == before
    np.testing.assert_array_equal(job(X).get().numpy(), [2, 4])
    assert default_session().jobs == [job]
