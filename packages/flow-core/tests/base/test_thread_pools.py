"""BLAS and OpenMP pool sizes follow the plan in the affected threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import processes
import pytest

from flow_core.base import thread_pools
from flow_core.base.thread_budget import Budget, Cores
from flow_core.base.thread_pools import (
    process_budget,
    set_budget,
    set_kernel_threads,
    sized_pools,
    with_sized_pools,
)
from flow_core.plan import Task
from flow_core.runtime.pipeline import Credit, Pipeline, Step
from flow_core.runtime.streams import StreamRunner, segments
from flow_core.sharding.topology import Device


class FakeRuntime:
    """An OpenMP runtime with a pool size per thread."""

    def __init__(self) -> None:
        self.count: dict[int, int] = {}

    def omp_set_num_threads(self, count: int) -> None:
        self.count[threading.get_ident()] = count

    @property
    def here(self) -> int:
        return self.count.get(threading.get_ident(), 99)


class FakeBlas:
    """A BLAS with a pool size per process."""

    def __init__(self) -> None:
        self.count = 99

    def get(self) -> int:
        return self.count

    def put(self, count: int) -> None:
        self.count = count


Pools = tuple[FakeRuntime, FakeBlas]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    """Pools of a process with a budget of four cores."""
    runtime, blas = FakeRuntime(), FakeBlas()
    before = process_budget()
    found = thread_pools.Blas("fake", blas.put, blas.get, 8)
    with monkeypatch.context() as patch:
        patch.setattr(thread_pools, "blas", lambda: found)
        patch.setattr(thread_pools, "_open_mp", {"fake": runtime})
        set_budget(Budget(4, "a test"))
        yield runtime, blas
    set_budget(before)


def test_pools_use_the_budget_without_a_plan(fakes: Pools) -> None:
    runtime, blas = fakes
    assert (runtime.here, blas.count) == (4, 4)
    with sized_pools(Cores(4, "a test", kernels=2, products=1, loaders=1)):
        assert (runtime.here, blas.count) == (2, 1)
    assert (runtime.here, blas.count) == (4, 4)
    with sized_pools(Cores()):
        assert (runtime.here, blas.count) == (4, 4)


def test_sizes_set_by_the_program_are_restored(fakes: Pools) -> None:
    _, blas = fakes
    blas.put(3)
    with sized_pools(Cores(4, "a test", kernels=4, products=1, loaders=1)):
        assert blas.count == 1
    assert blas.count == 3


def test_sizes_are_restored_after_an_error(fakes: Pools) -> None:
    runtime, blas = fakes
    with pytest.raises(ValueError, match="x"), sized_pools(Cores(4, "a test", 1, 1, 1)):
        raise ValueError("x")
    assert (runtime.here, blas.count) == (4, 4)


@pytest.mark.parametrize(("kernels", "products"), [(0, 0), (4, 4), (4, 1), (2, 2), (2, 1)], ids=str)
def test_step_uses_the_sizes_of_its_plan(fakes: Pools, kernels: int, products: int) -> None:
    runtime, blas = fakes
    seen: list[tuple[int, int]] = []

    def step() -> None:
        seen.append((runtime.here, blas.count))

    run = with_sized_pools(Cores(4, "a test", kernels, products, 1), step)
    run()
    assert seen == [(kernels or 4, products or 4)]
    assert (runtime.here, blas.count) == (4, 4)
    assert (run is step) == (products in (0, 4))  # default sizes add no cost to a step


def test_sizes_are_restored_after_a_failed_step(fakes: Pools) -> None:
    _, blas = fakes

    def step() -> None:
        raise ValueError("a step")

    with pytest.raises(ValueError, match="a step"):
        with_sized_pools(Cores(4, "a test", 4, 1, 1), step)()
    assert blas.count == 4


def test_maximum_of_a_blas_library_limits_its_size() -> None:
    blas = FakeBlas()
    thread_pools.Blas("fake", blas.put, blas.get, 2).size(4)
    assert blas.count == 2


def test_blas_library_of_numpy_is_found() -> None:
    """The wheels used by the tests contain OpenBLAS."""
    found = thread_pools.blas()
    assert found is not None
    before = found.get()
    try:
        found.put(1)
        assert found.get() == 1
    finally:
        found.put(before)


def stream_tasks(streams: int) -> list[Task]:
    return [
        Task("t", "t", {}, (), (), None, Device("cpu", 0, 0), "t", stream=i) for i in range(streams)
    ]


def test_concurrent_streams_divide_the_cores(fakes: Pools) -> None:
    """Each of two threads runs kernels with two threads, and numpy products use two."""
    runtime, blas = fakes
    together = threading.Barrier(2, timeout=processes.scaled(120))
    seen: list[tuple[int, int, int]] = []

    def launch() -> None:
        together.wait()
        seen.append((threading.get_ident(), runtime.here, blas.count))
        together.wait()

    parts = segments(stream_tasks(2))
    for part in parts:
        part.launch = launch
    run = StreamRunner(parts, 2, Cores(4, "a test", kernels=2, products=2, loaders=1))
    for _ in range(2):
        seen.clear()
        run()
        assert len({thread for thread, _, _ in seen}) == 2
        assert [sizes for _, *sizes in seen] == [[2, 2], [2, 2]]
        assert (runtime.here, blas.count) == (4, 4)


def test_asynchronous_steps_use_the_whole_budget(fakes: Pools) -> None:
    """They run one at a time in a separate thread, so nothing is divided."""
    runtime, _ = fakes
    seen: list[int] = []

    class Job:
        def run(self, feeds: object) -> tuple[()]:
            seen.append(runtime.here)
            return ()

    pipeline = Pipeline()
    for _ in range(2):
        pipeline.submit(Step(Job(), (), Credit(2)))
    pipeline.close()
    assert seen == [4, 4]


def test_smaller_size_of_a_thread_does_not_affect_other_threads(fakes: Pools) -> None:
    runtime, _ = fakes
    other = threading.Thread(target=set_kernel_threads, args=(1,))
    other.start()
    other.join()
    assert runtime.here == 4
    assert thread_pools.current_kernel_threads() == 4
