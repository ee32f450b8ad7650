"""Sessions, networks, clocks and counters for the parts of `cuda_checks.py`."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

HALVES = ("bert_base", "resnet50")
"""Networks that compute in bfloat16, like their peers."""

SIZES = {"bert_base": 64, "resnet50": 256}
SMALL_SIZES = {"bert_base": 2, "resnet50": 2}


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of a part.

    Attributes:
        simulated: whether the host simulates the device.
        deadline: end of the available time, as a value of `time.monotonic`.
    """

    simulated: bool
    deadline: float

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - time.monotonic()


def verdict(ok: object) -> str:
    return "passed" if ok else "FAILED"


def shrink() -> None:
    """Reduce the networks to sizes that the host can run."""
    import data
    import networks

    networks.BERT["bert_base"] = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 24, "batch": 2}
    stages = ((1, 4, 1), (1, 4, 2), (1, 4, 1), (1, 512, 1))
    networks.RESNET_STAGES = data.RESNET_STAGES = stages
    data.SEQUENCE, data.VOCABULARY, data.PREDICTIONS = 16, 40, 2
    data.IMAGE, data.ROWS, networks.ROWS = 32, 50, 50


def start(run: Run, device: str = "gpu") -> Any:
    """Create a new session whose jobs run on a device, and return the session."""
    from cuda_cases import core_registry, simulated_registry

    import oneflow as flow
    from flow_core.frontend.session import session as sessions
    from flow_core.plugins.host import load_plugins

    flow.clear_default_session()
    if run.simulated:
        registry = simulated_registry() if device == "gpu" else core_registry()
    else:
        registry = load_plugins()
    session = sessions.Session(registry)
    sessions._default[:] = [session]
    flow.config.gpu_device_num(int(device == "gpu"))
    return session


def compiled_at_once(run: Run, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """Return ``make()``; in a simulator, first compile all kernels of the result together."""
    if run.simulated:
        from unittest import mock

        from cuda_cases import Collector
        from cuda_simulator import plugin as simulated

        collected = Collector()
        with (
            mock.patch.object(simulated, "compiler", return_value=collected),
            np.errstate(all="ignore"),
        ):
            make()()
        simulated.compiler().preload(collected.found.values())
    return make()


def hardware_of(session: Any) -> Any:
    """Return the GPU that a session has used."""
    from flow_cuda.driver.gpu import GpuDriver

    return next(d for d in session._drivers.values() if isinstance(d, GpuDriver)).hardware


@contextlib.contextmanager
def counted_allocations(run: Run) -> Iterator[list[tuple[Any, int]]]:
    """Record the device and size of every device memory allocation in a ``with`` block."""
    if run.simulated:
        from cuda_simulator.hardware import Simulator as Hardware
    else:
        from flow_cuda.driver.cupy_hardware import CupyHardware as Hardware  # type: ignore[assignment]
    found: list[tuple[Any, int]] = []
    allocate = Hardware.allocate

    def counted(hardware: Any, nbytes: int) -> Any:
        found.append((hardware, nbytes))
        return allocate(hardware, nbytes)

    Hardware.allocate = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Hardware.allocate = allocate  # type: ignore[method-assign]


@contextlib.contextmanager
def timed_steps() -> Iterator[list[float]]:
    """Record the host's seconds for each call of a step, which queues work without waiting."""
    from flow_cuda.driver.gpu import Step

    found: list[float] = []
    called = Step.__call__

    def call(step: Step) -> None:
        started = time.perf_counter()
        called(step)
        found.append(time.perf_counter() - started)

    Step.__call__ = call  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Step.__call__ = called  # type: ignore[method-assign]


def bench_job(run: Run, workload: str) -> tuple[Any, Any, Any]:
    """Return a session, a job of a benchmark network, and its feeds."""
    import data
    import flow_bench

    import oneflow as flow

    feeds = bench_feeds(run, workload)
    plain = flow_bench.settings
    kept: list[Any] = []

    def settings(name: str) -> Any:
        config = plain(name)
        config.enable_auto_mixed_precision(name in HALVES)
        config.mixed_precision_data_type(flow.bfloat16)
        return config

    def made() -> Any:
        session = start(run)
        flow_bench.settings = settings
        try:
            job = flow_bench.make_job(workload, feeds)
        finally:
            flow_bench.settings = plain
        flow.load_variables(data.parameters(workload))
        kept[:] = [session, job]
        return functools.partial(job, *feeds)

    compiled_at_once(run, made)
    return kept[0], kept[1], feeds


def bench_feeds(run: Run, workload: str) -> tuple[Any, ...]:
    """Return a batch, with the batch size of this run where that differs from `data.py`."""
    import data

    rng = np.random.RandomState(99)
    size = (SMALL_SIZES if run.simulated else SIZES).get(workload)
    if workload == "bert_base":
        return data.bert_batch(rng, size)  # type: ignore[no-any-return]
    if workload == "resnet50":
        x = rng.standard_normal((size, 3, data.IMAGE, data.IMAGE)).astype("f4")
        return x, rng.randint(0, 1000, size).astype("i4")
    feeds = data.batch(rng, workload)
    return tuple(x[:1] for x in feeds) if run.simulated else feeds


def best_of(run: Run, call: Callable[[], object], seconds: float) -> float:
    """Return the seconds per call: the minimum of means, measured for about ``seconds`` seconds."""
    warm, rounds = (1, 1) if run.simulated else (3, 5)
    for _ in range(warm):
        call()
    started = time.perf_counter()
    call()
    one = max(time.perf_counter() - started, 1e-6)
    count = 1 if run.simulated else max(1, min(100, int(seconds / rounds / one)))
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - started) / count)
    return min(found)
