"""Memory: planned ahead, as small as its lower bound, and nothing more in steady state."""

import gc
import importlib
import sys
import tracemalloc
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import OutOfMemoryError
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.frontend.session.session import default_session

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
KIB = 1024

NUMPY_BUFFERS = 72 * KIB
"""A buffer of numpy's iterators (8192 elements of 8 bytes), and small Python objects."""

SHAPES = {
    "mlp": ((100, 784), 0.1),
    "small mlp": ((10, 784), 0.1),
    "lenet": ((100, 1, 28, 28), 0.1),
    "small lenet": ((16, 1, 28, 28), 0.1),
    "resnet50": ((8, 3, 224, 224), 0.01),
}


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    """The networks of the benchmarks."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("networks")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("selector", ["greedy", "optimal"])
def test_a_plan_that_does_not_fit_is_refused_by_line(
    selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NumpyDriver, "memory", lambda _: 5000)
    settings = flow.function_config()
    settings.sbp_selector(selector)

    @flow.global_function(function_config=settings)
    def job(x: tp.Numpy.Placeholder((30, 20))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            return flow.layers.dense(x, 370, name="wide")

    with emulated(4), pytest.raises(OutOfMemoryError, match="allowed: 5,000 bytes") as caught:
        job.plan()
    assert "wide-" in caught.value.found
    assert __file__ in caught.value.found
    assert "layouts chosen for less memory: " in str(caught.value)


def train_job(networks: ModuleType, name: str, result: Any = tp.Numpy) -> Any:
    shape, rate = SHAPES[name]

    def job(x: tp.Numpy.Placeholder(shape), y: tp.Numpy.Placeholder(shape[:1], dtype=flow.int32)):
        loss = getattr(networks, name.split()[-1])(x, y)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [rate])
        flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    job.__name__ = name
    job.__annotations__["return"] = result
    return flow.global_function(type="train")(job)


def batch(name: str) -> tuple[Any, Any]:
    shape, rng = SHAPES[name][0], np.random.default_rng(0)
    images = rng.normal(size=shape).astype(np.float32)
    return images, rng.integers(0, 10, shape[:1]).astype(np.int32)


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet50"])
def test_the_arena_is_at_most_5_percent_above_its_lower_bound(
    networks: ModuleType, name: str
) -> None:
    plan = train_job(networks, name).plan()
    (arena,) = plan.arenas
    assert arena.lower_bound <= arena.nbytes <= 1.05 * arena.lower_bound
    assert arena.lower_bound == largest_live_set(plan)
    check_no_overlap(plan)


def parts(plan: Any) -> list[Any]:
    """Buffers with memory of their own, the largest of those that share a place and a time."""
    found: dict[Any, Any] = {}
    for b in plan.buffers:
        if b.offset >= 0 and b.type.nbytes:
            found.setdefault((b.offset, b.first, b.last), b)
    return list(found.values())


def largest_live_set(plan: Any) -> int:
    """The most bytes that any task needs at once, counted from the plan's buffers."""
    changes: dict[int, int] = {}
    for b in parts(plan):
        size = -(-b.type.nbytes // 64) * 64
        changes[b.first] = changes.get(b.first, 0) + size
        changes[b.last + 1] = changes.get(b.last + 1, 0) - size
    live = most = 0
    for position in sorted(changes):
        live += changes[position]
        most = max(most, live)
    return most


def check_no_overlap(plan: Any) -> None:
    """Buffers that live at the same time lie apart."""
    owned = sorted(parts(plan), key=lambda b: b.offset)
    for i, a in enumerate(owned):
        for b in owned[i + 1 :]:
            if b.offset >= a.offset + a.type.nbytes:
                break
            assert a.last < b.first or b.last < a.first, (a, b)


def traced_by_numpy() -> int:
    """Bytes of arrays that are alive."""
    snapshot = tracemalloc.take_snapshot()
    only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(s.size for s in snapshot.filter_traces([only]).statistics("lineno"))


@pytest.mark.slow
@pytest.mark.representative(
    "mlp", "dense layers; the other network also has workspaces of convolutions"
)
@pytest.mark.parametrize("name", ["mlp", "small lenet"])
def test_the_predicted_memory_is_the_measured_one(networks: ModuleType, name: str) -> None:
    x, y = batch(name)
    train_job(networks, name)(x, y)  # fills the tables that all plans of a process share
    flow.clear_default_session()
    job = train_job(networks, name)
    plan = job.plan()
    states = sum(plan.buffers[i].type.nbytes for i in plan.variables.values())
    predicted = sum(arena.nbytes for arena in plan.arenas)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(3):
            job(x, y)
        measured = traced_by_numpy()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        job(x, y)
        grown = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert job.executable().measured() == {a.device: a.nbytes for a in plan.arenas}
    slack = 64 * (len(plan.arenas) + len(plan.variables)) + 2 * KIB  # each allocation is aligned
    assert predicted + states <= measured <= predicted + states + slack
    assert grown < NUMPY_BUFFERS


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def steady(
    job: Any, feeds: tuple[Any, Any], steps: int, asynchronous: bool = False
) -> tuple[int, int]:
    """Growth of traced memory over some steps: at their end, and at the peak between."""

    def take(_: Any) -> None:
        pass

    def run(count: int) -> None:
        for _ in range(count):
            called = job(*feeds)
            if asynchronous:
                called(take)
        flow.sync_default_session()

    tracemalloc.start()
    try:
        run(min(steps, 20))
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        run(steps)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - before


@pytest.mark.slow
@pytest.mark.representative(
    "mlp", "dense layers; the other network also has workspaces of convolutions"
)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["mlp", "small lenet"])
def test_steps_allocate_nothing_but_their_results(
    networks: ModuleType, name: str, asynchronous: bool
) -> None:
    job = train_job(networks, name, tp.Callback[tp.Numpy] if asynchronous else tp.Numpy)
    grown, peak = steady(job, batch(name), 60 if name == "mlp" else 5, asynchronous)
    assert grown < 4 * KIB  # the interpreter's own small objects
    assert peak < NUMPY_BUFFERS


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts resident pages")
def test_thousands_of_steps_of_an_mlp_allocate_nothing(networks: ModuleType) -> None:
    job, feeds = train_job(networks, "small mlp"), batch("small mlp")
    grown, peak = steady(job, feeds, 2_000)
    assert grown < 4 * KIB
    assert peak < NUMPY_BUFFERS
    before = resident()
    for _ in range(2_000):
        job(*feeds)
    assert resident() - before < KIB * KIB


@pytest.mark.slow
def test_results_are_the_only_arrays_of_a_step() -> None:
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((256, 256))) -> tp.Numpy:
        return flow.math.tanh(flow.matmul(x, x)) + 1

    x = np.eye(256, dtype=np.float32)
    kept = [job(x) for _ in range(3)]
    gc.collect()
    tracemalloc.start()
    try:
        before = traced_by_numpy()
        kept += [job(x) for _ in range(5)]
        after = traced_by_numpy()
    finally:
        tracemalloc.stop()
    assert 5 * x.nbytes <= after - before < 5 * x.nbytes + KIB
    assert all((k == kept[0]).all() for k in kept)


@pytest.mark.slow
def test_a_cleared_session_frees_its_plans_without_garbage_collection() -> None:
    def executable() -> weakref.ref[Any]:
        @flow.global_function(type="predict")
        def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
            return x + flow.get_variable("w", shape=(4,))

        job(np.zeros(4, np.float32))
        found = weakref.ref(job.executable())
        flow.clear_default_session()
        return found

    gc.collect()
    gc.disable()
    try:
        assert executable()() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_cleared_session_gives_its_memory_back() -> None:
    def once() -> None:
        @flow.global_function(type="predict")
        def job(x: tp.Numpy.Placeholder((512, 512))) -> tp.Numpy:
            w = flow.get_variable("w", shape=(512, 512))
            return flow.matmul(x, w)

        job(np.zeros((512, 512), np.float32))
        flow.clear_default_session()

    once()
    gc.collect()
    tracemalloc.start()
    try:
        before = traced_by_numpy()
        for _ in range(3):
            once()
        gc.collect()
        assert traced_by_numpy() - before < 64 * KIB
    finally:
        tracemalloc.stop()
    assert default_session().jobs == []
