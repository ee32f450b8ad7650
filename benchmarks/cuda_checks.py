"""Everything about flow-cuda that only a GPU can show, in one table, in under eight minutes.

    python benchmarks/cuda_checks.py [--seconds 480] [--only NAME ...] [--rehearse]

Without a GPU it says what is missing and ends with status 1.  ``--rehearse`` runs the checks on the
host, as far as they go there: that shows that the script works, and nothing about a device.
Peers are measured where they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SHARED = next((p for p in (ROOT / "shared", ROOT.parent / "shared") if p.is_dir()), ROOT.parent)
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "benchmarks")]

STEPS, WARM = 20, 5


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    result: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What a check knows.

    Attributes:
        rehearsed: whether the device is the host.
        deadline: when all must be over, by `time.monotonic`.
    """

    rehearsed: bool
    deadline: float

    def left(self) -> float:
        """Seconds until then."""
        return self.deadline - time.monotonic()


Check = Callable[[Run], Iterator[Row]]


def main() -> int:
    """Runs all checks until the time is over; status 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    run = Run(given.rehearse, time.monotonic() + given.seconds)
    missing = [] if run.rehearsed else list(what_is_missing())
    if missing:
        show([Row("device", "missing", text) for text in missing])
        return 1
    rows: list[Row] = []
    for name in given.only:
        started = time.monotonic()
        if run.left() < 0:
            rows.append(Row(name, "skipped", "the time is over"))
            continue
        rows.extend(guarded(name, CHECKS[name], run))
        print(f"... {name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    show(rows)
    return int(any(row.result == "FAILED" for row in rows))


def what_is_missing() -> Iterator[str]:
    """Why there is no GPU to check."""
    from flow_core.plugins.specs import Unavailable
    from flow_cuda.plugin import facts, judge

    found = judge(facts())
    if isinstance(found, Unavailable):
        yield f"{found.reason}; {found.hint}"


def guarded(name: str, check: Check, run: Run) -> Iterator[Row]:
    """The rows of a check; one that says so where it raises."""
    try:
        yield from check(run)
    except Exception as error:  # noqa: BLE001  # the other checks shall still run
        text = " ".join(str(error).split())[:300]
        yield Row(name, "FAILED", f"{type(error).__name__}: {text}")


def show(rows: list[Row]) -> None:
    """Prints the table."""
    width = max(len(row.name) for row in rows)
    middle = max(len(row.result) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.result:<{middle}}  {row.note}".rstrip())


def verdict(ok: object) -> str:
    return "passed" if ok else "FAILED"


# --- sessions and devices


def start(run: Run, device: str = "gpu") -> Any:
    """A fresh session whose jobs run on a device, and gives it."""
    from cuda_cases import core_registry, rehearsed_registry

    import oneflow as flow
    from flow_core.frontend import session as sessions
    from flow_core.plugins.host import load_plugins

    flow.clear_default_session()
    if run.rehearsed:
        registry = rehearsed_registry() if device == "gpu" else core_registry()
    else:
        registry = load_plugins()
    session = sessions.Session(registry)
    sessions._default[:] = [session]
    flow.config.gpu_device_num(int(device == "gpu"))
    return session


def hardware_of(session: Any) -> Any:
    """The GPU that a session has used."""
    from flow_cuda.driver import GpuDriver

    return next(d for d in session._drivers.values() if isinstance(d, GpuDriver)).hardware


@contextlib.contextmanager
def counted_allocations(hardware: Any) -> Iterator[list[int]]:
    """The bytes of all allocations of device memory within."""
    found: list[int] = []
    made = hardware.allocate

    def allocate(nbytes: int) -> Any:
        found.append(nbytes)
        return made(nbytes)

    hardware.allocate = allocate
    try:
        yield found
    finally:
        del hardware.allocate  # the class has it


@contextlib.contextmanager
def timed_steps() -> Iterator[list[float]]:
    """Seconds that the host spends in each call of a step: what queues it, without waiting."""
    from flow_cuda.driver import Step

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


# --- checks


def environment(run: Run) -> Iterator[Row]:
    """Date, device and versions."""
    from importlib import metadata

    yield Row("date", time.strftime("%Y-%m-%d"))
    if run.rehearsed:
        yield Row("device", "rehearsed", "the host")
        return
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    number = cupy.cuda.runtime.runtimeGetVersion()
    versions = [f"CUDA {number // 1000}.{number % 1000 // 10}", f"CuPy {cupy.__version__}"]
    for package in ("nvmath-python", "torch", "jax"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    yield Row("device", name, ", ".join(versions))


def products(run: Run) -> Iterator[Row]:
    """What cuBLASLt has algorithms for, and whether its masks are ours."""
    from flow_cuda.hardware import EPILOGUES, Product
    from flow_cuda.masks import masks_are_ours

    hardware = start(run).driver("gpu:0:0").hardware
    kinds, sizes = ("float32", "float16", "bfloat16"), ((256, 512, 512), (100, 10, 512))
    refused, count = [], 0
    for kind in kinds:
        for m, n, k in sizes:
            for name in EPILOGUES:
                for flips in ((False, True), (False, False), (True, False)):
                    problem = Product(m, n, k, *flips, kind, epilogue=name)
                    count += 1
                    if not hardware.supports(problem, 32 << 20):
                        refused.append(f"{name or 'plain'}/{kind}/{m}x{n}x{k}/{flips}")
    note = f"refused: {refused[:6]}" if refused else ""
    yield Row("cuBLASLt epilogues", f"{count - len(refused)} of {count}", note)
    ours = masks_are_ours(hardware)
    yield Row("cuBLASLt masks", "ours" if ours else "others", "" if ours else "kernels do relu")


def like_the_cpu(run: Run) -> Iterator[Row]:
    """Training steps on the GPU and on the CPU: an MLP with dropout, a small LeNet, a table."""
    import cuda_small

    for name, (make, feeds) in cuda_small.programs().items():
        losses = {}
        for device in ("cpu", "gpu"):
            start(run, device)
            job = make(device)
            losses[device] = [job(*feeds).item() for _ in range(4 if run.rehearsed else STEPS)]
        off = float(np.max(np.abs(np.subtract(losses["cpu"], losses["gpu"]))))
        moved = abs(losses["gpu"][0] - losses["gpu"][-1]) > 1e-4
        yield Row(f"{name} like the CPU's", verdict(off < 2e-3 and moved), f"off by {off:.1e}")


def dropout_bits(run: Run) -> Iterator[Row]:
    """Dropout drops the same elements as on the CPU."""
    import cuda_small

    ones = np.ones((40, 30) if run.rehearsed else (512, 1000), np.float32)
    kept = {}
    for device in ("cpu", "gpu"):
        start(run, device)
        job = cuda_small.dropout_on(ones, device)
        kept[device] = [job(ones) for _ in range(4)]
    same = all(np.array_equal(a, b) for a, b in zip(*kept.values(), strict=True))
    changes = not np.array_equal(kept["gpu"][0], kept["gpu"][1])
    yield Row("dropout bits", verdict(same and changes), "4 steps")


def steady(run: Run) -> Iterator[Row]:
    """A step of the mlp: host time, allocations, memory."""
    session, job, feeds = bench_job(run, "mlp")
    hardware = hardware_of(session)
    with counted_allocations(hardware) as made:
        for _ in range(WARM):
            job(*feeds)
        held, free = sum(made), hardware.free_bytes()
        made.clear()
        with timed_steps() as times:
            for _ in range(10 if run.rehearsed else 500):
                job(*feeds)
        less = free - hardware.free_bytes()
    host = float(np.median(times)) * 1e6
    fast = run.rehearsed or host < 20
    yield Row("host time of a replayed step", verdict(fast), f"{host:.1f} us in the median")
    yield Row("allocations of a step", verdict(not made), f"{len(made)}, {less} bytes less free")
    predicted = sum(arena.nbytes for arena in job.plan().arenas)
    rest = held - predicted
    note = f"{predicted} predicted, {held} allocated: {rest} for tables and numbers"
    yield Row("arena as predicted", verdict(0 <= rest < 1 << 16), note)


def programs(run: Run) -> Iterator[Row]:
    """The seeds' programs, unmodified, on gpu 0:0."""
    data = SHARED / "data" / "mnist.npz"
    folder = SHARED / "programs"
    if run.rehearsed or not (data.exists() and folder.is_dir()):
        yield Row("programs", "skipped", "rehearsed" if run.rehearsed else f"no {data}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(data, Path(scratch, "mnist.npz"))
        for name, pattern in PROGRAMS.items():
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", WRAPPER, str(folder / name), "2"], cwd=scratch,
                capture_output=True, text=True, timeout=max(1.0, run.left()), check=False,
            )  # fmt: skip
            found = re.findall(pattern, done.stdout)
            last = done.stderr.strip().splitlines()[-1:] if done.returncode else found[-1:]
            took = f"{time.perf_counter() - started:.1f} s"
            yield Row(name, verdict(not done.returncode and found), f"{last} in {took}")


PROGRAMS = {
    "lenet_train.py": r"model saved",
    "lenet_eval.py": r"accuracy: [\d.]+%",
    "async_single_job.py": r"\d+\.\d+",
    "async_batch_job.py": r"accuracy: [\d.]+%",
}
# Cuts the epochs by wrapping: the program's own ``range`` counts no further than this.
WRAPPER = """
import builtins, runpy, sys
path, epochs = sys.argv[1], int(sys.argv[2])
short = lambda *args: builtins.range(*args[:-1], min(args[-1], epochs))
runpy.run_path(path, init_globals={"range": short}, run_name="__main__")
"""


def kernel_kit(run: Run) -> Iterator[Row]:
    """All samples of all ops in all types, against the references, on the device."""
    from cuda_cases import CudaKit, DeviceKernels

    class RehearsedKernels(CudaKit):
        ops = ("relu", "cuda_matmul", "sort", "softmax")
        dtypes = ("float32",)

    kit = RehearsedKernels() if run.rehearsed else DeviceKernels()
    ops = kit.covered_ops()
    stop = time.monotonic() + min(run.left(), 200.0)
    if not run.rehearsed:
        kernels = kit.all_kernels()
        seconds = preloaded(kit.driver().hardware, kernels)
        yield Row("kernels compiled", str(len(kernels)), f"{seconds:.0f} s, or from the cache")
    failed: list[str] = []
    passed = 0
    for op in ops:
        if time.monotonic() > stop:
            failed.append(f"cut short before {op}")
            break
        for dtype in kit.dtypes_of(op):
            for case in kit.cases(op, dtype):
                try:
                    kit.check(case)
                    passed += 1
                except Exception as error:  # noqa: BLE001  # counted and named
                    failed.append(f"{op}-{dtype}: {str(error).strip().splitlines()[:1]}")
    yield Row("kernels", verdict(not failed), f"{passed} cases; {failed[:8] or ''}")


def preloaded(hardware: Any, kernels: list[Any]) -> float:
    """Seconds to compile kernels, many at once."""
    started = time.perf_counter()
    hardware.preload(kernels)
    return time.perf_counter() - started


# --- step times


def bench_job(run: Run, workload: str, amp: bool = False, size: int = 0) -> tuple[Any, Any, Any]:
    """A session, a job of a benchmark network, and its feeds."""
    import data
    import flow_bench

    import oneflow as flow

    session = start(run)
    feeds = bench_feeds(workload, size)
    plain = flow_bench.settings

    def settings(name: str) -> Any:
        config = plain(name)
        config.enable_auto_mixed_precision(amp)
        return config

    flow_bench.settings = settings
    try:
        job = flow_bench.make_job(workload, feeds)
    finally:
        flow_bench.settings = plain
    flow.load_variables(data.parameters(workload))
    return session, job, feeds


def bench_feeds(workload: str, size: int) -> tuple[Any, ...]:
    """A batch, of another size than `data.py`'s where one is given."""
    import data

    rng = np.random.RandomState(99)
    if workload == "bert_base":
        return data.bert_batch(rng, size)  # type: ignore[no-any-return]
    if workload == "resnet50":
        x = rng.standard_normal((size, 3, 224, 224)).astype("f4")
        return x, rng.randint(0, 1000, size).astype("i4")
    return data.batch(rng, workload)  # type: ignore[no-any-return]


def best_of(call: Callable[[], object], seconds: float) -> float:
    """Seconds per call: the least of means of some calls, for about as long as is said."""
    for _ in range(3):
        call()
    started = time.perf_counter()
    call()
    one = max(time.perf_counter() - started, 1e-6)
    count = max(1, min(100, int(seconds / 5 / one)))
    found = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - started) / count)
    return min(found)


def rates(run: Run) -> Iterator[Row]:
    """Measured bytes and floating point operations per second."""
    hardware = start(run).driver("gpu:0:0").hardware
    for name, value in measured_rates(hardware, run.rehearsed).items():
        yield Row(f"rate: {name}", f"{value / 1e12:.2f} T/s")


@functools.cache
def measured_rates(hardware: Any, rehearsed: bool) -> dict[str, float]:
    """Bytes copied (read and written), and operations of products by type, per second."""
    from flow_cuda.hardware import Operands, Product

    size = 1 << (16 if rehearsed else 30)
    memory, other = hardware.allocate(size), hardware.allocate(size)
    stream, n = hardware.compute, 64 if rehearsed else 8192

    def timed(work: Callable[[], None]) -> float:
        def call() -> None:
            work()
            hardware.synchronize(hardware.record(stream))

        return best_of(call, 0.5)

    copy = functools.partial(hardware.copy, stream, other.address, memory.address, size)
    found = {"bytes": 2 * size / timed(copy)}
    for kind in ("float32", "float16"):
        where = Operands(memory.address, memory.address, other.address)
        product = Product(n, n, n, False, False, kind)
        found[kind] = 2 * n**3 / timed(functools.partial(hardware.product, stream, product, where))
    return found


def floor_of(session: Any, job: Any, found: dict[str, float], amp: bool) -> tuple[float, float]:
    """Seconds that the step's bytes and its operations take at measured rates."""
    from flow_core.plugins.specs import SbpContext

    graph, specs = job.compile().graph, session.registry.ops
    nbytes = flops = 0.0
    for op in graph.ops.values():
        if op.type in ("input", "variable"):
            continue
        inputs, outputs = graph.input_types(op), graph.types[op.name]
        if specs[op.type].alias is None:
            nbytes += sum(t.size * t.dtype.itemsize for t in (*inputs, *outputs))
        if op.type.startswith("cuda_matmul"):
            k = inputs[0].shape[0 if op.attrs["transpose_a"] else 1]
            flops += 2.0 * outputs[0].size * k
        elif specs[op.type].work is not None:
            flops += specs[op.type].work(SbpContext(inputs, outputs, op.attrs))
    return nbytes / found["bytes"], flops / found["float16" if amp else "float32"]


def step_time(workload: str, amp: bool, size: int, run: Run) -> Iterator[Row]:
    """A network's step beside its floor, then peers."""
    import cuda_peers

    session, job, feeds = bench_job(run, workload, amp, size)
    seconds = 0.1 if run.rehearsed else 3.0
    loss = float(job(*feeds).reshape(-1)[0])
    own = best_of(lambda: job(*feeds), seconds)
    found = measured_rates(hardware_of(session), run.rehearsed)
    by_bytes, by_work = floor_of(session, job, found, amp)
    floor = f"floor {by_bytes * 1e6:.0f} us of bytes, {by_work * 1e6:.0f} us of work"
    yield Row(f"{workload} step", f"{own * 1e6:.0f} us", f"{floor}; first loss {loss:.4f}")
    for name, make in cuda_peers.PEERS.items():
        package = name.split(".")[0].split()[0]
        if importlib.util.find_spec(package) is None or run.left() < 10:
            yield Row(f"{workload} step, {name}", "skipped", f"no {package}, or no time")
            continue
        if name.startswith("jax") and workload not in ("mlp", "lenet"):
            continue
        check = functools.partial(_peer, name, make, workload, amp, feeds, own)
        yield from guarded(f"{workload} step, {name}", check, run)


def _peer(
    name: str, make: Any, workload: str, amp: bool, feeds: Any, own: float, run: Run
) -> Iterator[Row]:
    with contextlib.redirect_stdout(io.StringIO()):  # autotuning is talkative
        step = make(workload, feeds, amp)
        loss = step()
        time_ = best_of(step, 0.1 if run.rehearsed else 2.0)
    note = f"{time_ / own:.2f} x ours; first loss {loss:.4f}"
    yield Row(f"{workload} step, {name}", f"{time_ * 1e6:.0f} us", note)


def _step(workload: str, amp: bool = False, size: int = 0) -> Check:
    def check(run: Run) -> Iterator[Row]:
        if run.rehearsed and workload != "mlp":
            yield Row(f"{workload} step", "skipped", "rehearsed")
        else:
            yield from step_time(workload, amp, size, run)

    return check


CHECKS: dict[str, Check] = {
    "environment": environment,
    "products": products,
    "like the CPU": like_the_cpu,
    "dropout": dropout_bits,
    "steady": steady,
    "rates": rates,
    "mlp": _step("mlp"),
    "lenet": _step("lenet"),
    "kernels": kernel_kit,
    "programs": programs,
    "wide_deep": _step("wide_deep_sgd"),
    "bert_base": _step("bert_base", True, 64),
    "resnet50": _step("resnet50", True, 256),
}

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "4")
    raise SystemExit(main())
