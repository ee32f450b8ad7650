"""Everything about flow-cuda that only a GPU can show, in one table, in under eight minutes.

Without a GPU it says what is missing and ends with status 1.  torch is measured where it is there.

    python benchmarks/cuda_checks.py [--seconds 480]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

BATCH, WIDTH, CLASSES = 256, 512, 10


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    result: str
    note: str = ""


Check = Callable[[float], Iterator[Row]]


def main() -> int:
    """Runs all checks until the time is over; status 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480.0)
    deadline = time.monotonic() + parser.parse_args().seconds
    missing = list(what_is_missing())
    if missing:
        show([Row("device", "missing", text) for text in missing])
        return 1
    rows = list(environment())
    for name, check in CHECKS.items():
        if time.monotonic() > deadline:
            rows.append(Row(name, "skipped", "the time is over"))
            continue
        rows.extend(guarded(name, check, deadline))
    show(rows)
    return int(any(row.result == "FAILED" for row in rows))


def what_is_missing() -> Iterator[str]:
    """Why there is no GPU to check."""
    from flow_core.plugins.specs import Unavailable
    from flow_cuda.plugin import judge

    found = judge(facts())
    if isinstance(found, Unavailable):
        yield f"{found.reason}; {found.hint}"


def facts():
    from flow_cuda import plugin

    return plugin.facts()


def guarded(name: str, check: Check, deadline: float) -> Iterator[Row]:
    """The rows of a check; one that says so where it raises."""
    try:
        yield from check(deadline)
    except Exception as error:  # noqa: BLE001  # the other checks shall still run
        text = str(error).strip().splitlines() or [""]
        yield Row(name, "FAILED", f"{type(error).__name__}: {text[0]}")


def show(rows: list[Row]) -> None:
    """Prints the table."""
    width = max(len(row.name) for row in rows)
    middle = max(len(row.result) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.result:<{middle}}  {row.note}".rstrip())


def environment() -> Iterator[Row]:
    """Date, device and versions."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    yield Row("date", time.strftime("%Y-%m-%d"))
    yield Row(
        "device", name, f"CUDA {runtime // 1000}.{runtime % 1000 // 10}, CuPy {cupy.__version__}"
    )


def kernel_kit(deadline: float) -> Iterator[Row]:
    """All samples of all ops in all types, against the references, on the device."""
    from cuda_cases import DeviceKernels

    kit = DeviceKernels()
    failed, passed = [], 0
    for op in kit.covered_ops():
        for dtype in kit.dtypes_of(op):
            if time.monotonic() > deadline:
                yield Row("kernels", "cut short", f"before {op}")
                return
            for case in kit.cases(op, dtype):
                try:
                    kit.check(case)
                    passed += 1
                except Exception as error:  # noqa: BLE001  # counted and named
                    failed.append(f"{op}-{dtype}: {str(error).strip().splitlines()[:1]}")
    yield Row("kernels", "FAILED" if failed else "passed", f"{passed} cases; {failed[:8] or ''}")


def programs(device: str):
    """A two-layer network's training step, as (job, feeds)."""
    import oneflow as flow
    import oneflow.typing as tp

    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, WIDTH)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            hidden = flow.layers.dense(x, WIDTH, flow.nn.relu, name="first")
            hidden = flow.nn.dropout(hidden, rate=0.1, name="drop")
            logits = flow.layers.dense(hidden, CLASSES, name="last")
            loss = flow.math.reduce_mean(
                flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            )
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    return job, (x, rng.integers(0, CLASSES, BATCH).astype(np.int32))


def same_as_cpu(deadline: float) -> Iterator[Row]:
    """Twenty training steps on the GPU and on the CPU, dropout included."""
    import oneflow as flow

    losses = {}
    for device in ("cpu", "gpu"):
        flow.clear_default_session()
        flow.config.gpu_device_num(int(device == "gpu"))
        job, feeds = programs(device)
        losses[device] = [job(*feeds).item() for _ in range(20)]
    difference = float(np.max(np.abs(np.subtract(losses["cpu"], losses["gpu"]))))
    yield Row(
        "mlp like the CPU's", "passed" if difference < 1e-3 else "FAILED", f"{difference:.1e}"
    )


def step_times(deadline: float) -> Iterator[Row]:
    """Time of a step, and that it neither allocates nor captures after the second one."""
    import cupy

    import oneflow as flow

    flow.clear_default_session()
    flow.config.gpu_device_num(1)
    job, feeds = programs("gpu")
    for _ in range(5):
        job(*feeds)
    before = cupy.cuda.runtime.memGetInfo()[0]
    found = best_of(lambda: job(*feeds))
    after = cupy.cuda.runtime.memGetInfo()[0]
    yield Row("mlp step", f"{found * 1e6:.0f} us", "feeds and result included")
    yield Row("steady memory", "passed" if before == after else "FAILED", f"{before - after} bytes")


def best_of(call: Callable[[], object], repeats: int = 7, count: int = 50) -> float:
    """Seconds per call, the least of some means."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - start) / count)
    return min(found)


def peers(deadline: float) -> Iterator[Row]:
    """The same step in torch, eagerly and compiled, where it is installed."""
    try:
        import torch
    except ImportError:
        yield Row("peers", "skipped", "torch is not installed")
        return
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(WIDTH, CLASSES),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(BATCH, WIDTH, pin_memory=True)
    y = torch.randint(0, CLASSES, (BATCH,), pin_memory=True)

    def step(net):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        return loss.item()

    compiled = torch.compile(model, mode="max-autotune")
    for name, net in (("eager", model), ("torch.compile", compiled)):
        for _ in range(5):
            step(net)
        yield Row(f"mlp step, torch {name}", f"{best_of(lambda net=net: step(net)) * 1e6:.0f} us")
        if time.monotonic() > deadline:
            return


CHECKS: dict[str, Check] = {
    "mlp like the CPU's": same_as_cpu,
    "mlp step": step_times,
    "peers": peers,
    "kernels": kernel_kit,
}

if __name__ == "__main__":
    raise SystemExit(main())
