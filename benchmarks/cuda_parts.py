"""The parts of `cuda_checks.py`, each run in a separate process.

    python benchmarks/cuda_parts.py steady --rows FILE [--simulate]

A part writes each row of the table to the file as a line of JSON as soon as the row is known.  With
``--simulate``, the same code runs on the host with small shapes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.sharding.topology import Device

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FAKES = ROOT / "packages" / "flow-dist" / "tests" / "helpers"
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "helpers"), str(FAKES)]

from cuda_order import PEERS, Row  # noqa: E402 - found by the line above
from cuda_rig import (  # noqa: E402
    HALVES,
    Run,
    bench_feeds,
    bench_job,
    best_of,
    counted_allocations,
    hardware_of,
    shrink,
    start,
    timed_steps,
    verdict,
)
from cuda_table import ACCURACY  # noqa: E402

WARM = 5
TABLES = 1 << 14
"""Maximum number of bytes of tables outside of the plan, for every twenty tasks."""

Check = Callable[..., Iterator[Row]]


def main() -> int:
    """Run one part and write its rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args()
    run = Run(given.simulate, time.monotonic() + given.seconds)
    name, *words = given.part.split(":")
    if run.simulated:
        shrink()
    with given.rows.open("a") as file:
        for row in guarded(given.part, functools.partial(CHECKS[name], run, *words)):
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            print(row.name, row.result, row.note, flush=True)
    return 0


def guarded(name: str, check: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Yield the rows of a check; an exception becomes a row."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - the row reports it
        import traceback

        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        yield Row(name, "FAILED", f"{type(error).__name__}: {text}")


# --- parts


def environment(run: Run) -> Iterator[Row]:
    """Report date, device and versions; without a GPU, report what is missing."""
    yield Row("date", time.strftime("%Y-%m-%d"))
    yield Row("versions", f"Python {sys.version.split()[0]}", ", ".join(versions()))
    if run.simulated:
        yield Row("device", "simulated", "the host")
        return
    from flow_core.plugins.specs import Unavailable
    from flow_cuda.plugin import facts, judge

    found = judge(facts())
    if isinstance(found, Unavailable):
        yield Row("device", "missing", f"{found.reason}; {found.hint}")
        return
    import cupy

    runtime = cupy.cuda.runtime
    facts_of = runtime.getDeviceProperties(0)
    numbers = {"driver up to": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()}
    words = [f"CUDA {n // 1000}.{n % 1000 // 10} ({name})" for name, n in numbers.items()]
    words += [f"{found.count} devices", f"{facts_of['totalGlobalMem'] >> 20} MiB", *nvidia_smi()]
    yield Row("device", facts_of["name"].decode(), ", ".join(words))


def versions() -> Iterator[str]:
    """Yield names and versions of installed packages."""
    from importlib import metadata

    for package in (
        "flow-cuda", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings",
        "nvidia-cudnn-frontend", "nccl4py", "torch", "jax",
    ):  # fmt: skip
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{package} {metadata.version(package)}"


def nvidia_smi() -> list[str]:
    """Return the driver's version if nvidia-smi is available."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return [f"driver {done.stdout.split()[0]}"] if done.stdout.split() else []


def steady(run: Run) -> Iterator[Row]:
    """Measure the memory, host time and allocations of a step of ``mlp``."""
    with counted_allocations(run) as made:
        session, job, feeds = bench_job(run, "mlp")
        job(*feeds)
        hardware = hardware_of(session)
        yield memory_row("mlp", job, made, hardware)
        for _ in range(80):  # as many as there are staging buffers for numbers
            job(*feeds)
        made.clear()
        free = hardware.free_bytes()
        with timed_steps() as times:
            for _ in range(10 if run.simulated else 500):
                job(*feeds)
        less = free - hardware.free_bytes()
    host, least = float(np.median(times)) * 1e6, min(times) * 1e6
    note = f"us median, {least:.1f} minimum; target: below 20"
    yield Row("mlp: host time of a replayed step", f"{host:.1f}", note, {"us": host})
    if not run.simulated:
        yield Row("mlp: host time below 20 us", verdict(host < 20))
    yield Row(
        "mlp: no allocations in a step", verdict(not made), f"free memory decreased by {less} bytes"
    )


def memory_row(name: str, job: Any, made: list[tuple[Any, int]], hardware: Any) -> Row:
    """Check that only the predicted arena, variables and small tables were allocated."""
    plan, allocated = job.plan(), sum(nbytes for of, nbytes in made if of is hardware)
    arena = sum(arena.nbytes for arena in plan.arenas)
    held = {b.name: b.type.nbytes for b in plan.buffers if b.kind == "variable"}
    rest = allocated - arena - sum(held.values())
    tables = TABLES * max(1, len(plan.tasks) // 20)  # for addresses of merged updates, and numbers
    note = f"{arena} bytes predicted, {sum(held.values())} in variables, {rest} in tables"
    return Row(f"{name}: arena as predicted", verdict(0 <= rest < tables), note)


def programs(run: Run, device: str) -> Iterator[Row]:
    """Run OneFlow's unmodified programs on gpu 0:0 or, for comparison, on CPUs that emulate it."""
    shared = Path(os.environ.get("FLOW_CHECKS_SHARED", ROOT / "shared"))
    archive, folder = shared / "data" / "mnist.npz", shared / "programs"
    if not (archive.exists() and folder.is_dir()):
        yield Row(f"programs on the {device}", "skipped", "no data/mnist.npz, no programs")
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy_mnist(archive, Path(scratch), run.simulated)
        for name, (epochs, pattern) in PROGRAMS.items():
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", WRAPPER, str(folder / name), str(epochs)], cwd=scratch,
                capture_output=True, text=True, timeout=max(1.0, run.left()), check=False,
                env={**os.environ, **program_environment(run, device)},
            )  # fmt: skip
            found = re.findall(pattern, done.stdout, re.MULTILINE)
            words = found[-1:] or done.stderr.strip().splitlines()[-1:]
            took = time.perf_counter() - started
            ok = not done.returncode and found
            yield Row(f"{name} on the {device}", verdict(ok), f"{' '.join(words)} in {took:.1f} s")
            if ok and name == "lenet_eval.py":
                percent = float(found[-1].split()[-1].rstrip("%"))
                row = ACCURACY.format(device)
                yield Row(row, f"{percent:.2f} %", "10000 images", {"percent": percent})


def copy_mnist(archive: Path, folder: Path, few: bool) -> None:
    """Copy the images of MNIST, or if ``few``, only 100 for training and 500 for testing."""
    if not few:
        shutil.copy(archive, folder / "mnist.npz")
        return
    with np.load(archive) as content:
        cut = {name: content[name][: 500 if "test" in name else 100] for name in content.files}
    np.savez(folder / "mnist.npz", **cut)


def program_environment(run: Run, device: str) -> dict[str, str]:
    """Return environment variables that make "gpu" a real device, a simulated one, or the CPU."""
    if device == "cpu":
        return {"ONEFLOW_EMULATE_GPUS": "1"}
    return {"FLOW_CHECKS_SIMULATE": "1"} if run.simulated else {}


PROGRAMS = {
    "lenet_train.py": (1, r"^model saved"),
    "lenet_eval.py": (1, r"^accuracy: [\d.]+%"),
    "async_single_job.py": (2, r"^\d+\.\d+(?:e-?\d+)?$"),
    "async_batch_job.py": (1, r"^accuracy: [\d.]+%"),
}
"""Number of epochs and expected output of each program."""

# Limit the epochs by replacing the program's ``range``.
WRAPPER = """
import builtins, os, runpy, sys
path, epochs = sys.argv[1], int(sys.argv[2])
if os.environ.get("FLOW_CHECKS_SIMULATE"):
    from cuda_cases import simulated_registry
    from flow_core.frontend.session import session as sessions
    from flow_core.plugins.host import load_plugins
    from dataclasses import replace
    from flow_core.base.config import Settings
    others = ("flow-cuda", "flow-onednn")
    settings = replace(Settings.from_env(), disabled_plugins=others)
    registry = load_plugins(settings, extra=["cuda_simulator.plugin"])
    sessions._default[:] = [sessions.Session(registry)]
short = lambda *args: builtins.range(*args[:-1], min(args[-1], epochs))
runpy.run_path(path, init_globals={"range": short}, run_name="__main__")
"""


def kernels(run: Run, family: str) -> Iterator[Row]:
    """Check the family's ops on the device, with all samples and types, against the references."""
    from cuda_cases import CudaKit, DeviceKernels

    module = importlib.import_module(f"flow_cuda.kernels.{family}")
    asked_for = {spec.op for spec in module.KERNELS}

    class Few(CudaKit):
        dtypes = ("float32",)

    kit = Few() if run.simulated else DeviceKernels()
    ops = tuple(op for op in kit.covered_ops() if op in asked_for and has_cases(kit, op))
    type(kit).ops = ops[:1] if run.simulated else ops
    if not run.simulated:
        asked, started = kit.all_kernels(copies=(1,)), time.perf_counter()
        hardware = kit.driver().hardware
        for kernel in asked:
            hardware.function(kernel)
        hardware.load()
        seconds = time.perf_counter() - started
        note = f"{seconds:.0f} s, or from the cache"
        yield Row(f"{family}: kernels compiled", str(len(asked)), note)
    failed: list[str] = []
    passed = 0
    for op in kit.covered_ops():
        for dtype in kit.dtypes_of(op):
            for case in kit.cases(op, dtype):
                if run.left() < 3:
                    failed.append(f"cut short in {op}-{dtype}")
                    break
                try:
                    kit.check(case)
                    passed += 1
                except Exception as error:  # noqa: BLE001 - counted and named
                    failed.append(f"{op}-{dtype}: {str(error).strip().splitlines()[:1]}")
    counts = {"green": float(passed), "red": float(len(failed))}
    note = f"{passed} green, {len(failed)} red; {failed[:6] or ''}"
    yield Row(f"{family}: kernels", verdict(passed and not failed), note, counts)


def has_cases(kit: Any, op: str) -> bool:
    """Return whether a kit has any check for an op."""
    return any(True for dtype in kit.dtypes_of(op) for _ in kit.cases(op, dtype))


def nccl(run: Run) -> Iterator[Row]:
    """Check every NCCL primitive on communicators for one and, if available, several devices."""
    import nccl_checks

    setup = simulated_nccl() if run.simulated else nccl_checks.found()
    if isinstance(setup, str):
        yield Row("NCCL", "skipped", setup)
        return
    for row in nccl_checks.rows_of(setup):
        yield Row(f"NCCL: {row.name}", row.result, row.note)


def simulated_nccl() -> Any:
    """Set up one simulated device and a fake NCCL with one rank."""
    import nccl_checks
    from nccl_simulated import Fabric, rank

    nccl_checks.DTYPE_NAMES = ("float32", "bool")
    gpu, groups = rank(Fabric(), None)
    return nccl_checks.Setup((Device("gpu", 0, 0),), {Device("gpu", 0, 0): gpu.driver}, groups)


# --- step times


def rates(run: Run) -> Iterator[Row]:
    """Measure the bytes and FLOPs per second from which the lower bounds are computed."""
    from flow_cuda.device.hardware import Operands, Product

    driver = start(run).driver(Device("gpu", 0, 0))
    hardware, stream = driver.hardware, driver.hardware.compute
    size, n = (1 << 16, 64) if run.simulated else (1 << 30, 8192)
    arrays = [driver.allocate(size).view(0, (size // 4,), np.float32) for _ in range(2)]
    part = np.random.default_rng(0).normal(size=1 << 14).astype(np.float32)
    for array in arrays:  # products of zeros are faster than those of other numbers
        driver.copy_in(array, np.resize(part, array.shape))
    memory, other = arrays

    def timed(work: Callable[[], None]) -> float:
        def call() -> None:
            for _ in range(3):
                work()
            hardware.synchronize(hardware.record(stream))

        return best_of(run, call, 0.5) / 3

    copy = functools.partial(hardware.copy, stream, other.address, memory.address, size)
    rate = 2 * size / timed(copy)
    yield Row("rate: bytes", f"{rate / 1e12:.2f} T/s", "read and written", {"bytes": rate})
    for kind, bits, tf32 in (
        ("float32", 19, True),
        ("float32", 32, False),
        ("bfloat16", 16, False),
    ):
        where = Operands(memory.address, memory.address, other.address)
        product = Product(n, n, n, False, False, kind, tf32=tf32)
        call = functools.partial(hardware.product, stream, product, where)
        with np.errstate(all="ignore"):
            rate = 2 * n**3 / timed(call)
        name = f"operations {bits}"
        note = f"products of {kind}{' rounded to 19 bits' * tf32}"
        yield Row(f"rate: {name}", f"{rate / 1e12:.2f} T/s", note, {name: rate})


def needs_of(session: Any, job: Any) -> tuple[float, float]:
    """Return the bytes that the ops of a step read and write one by one, and the step's FLOPs."""
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
        elif (work := specs[op.type].work) is not None:
            flops += work(SbpContext(inputs, outputs, op.attrs))
    return nbytes, flops


def step(run: Run, workload: str) -> Iterator[Row]:
    """Measure the step of a network, from numpy arrays to the loss, and compute lower bounds."""
    with counted_allocations(run) as made:
        session, job, feeds = bench_job(run, workload)
        started = time.perf_counter()
        loss = float(job(*feeds).reshape(-1)[0])
        first = time.perf_counter() - started
    yield memory_row(workload, job, made, hardware_of(session))
    seconds = best_of(run, lambda: job(*feeds), 3.0)
    nbytes, operations = needs_of(session, job)
    bits = 16 if workload in HALVES else 19
    data = {
        "seconds": seconds, "loss": loss, "bytes": nbytes, "operations": operations, "bits": bits,
    }  # fmt: skip
    arena = job.plan().arenas[0].nbytes
    note = f"first loss {loss:.4f} after {first:.1f} s; arena of {arena >> 20} MiB"
    yield Row(f"{workload}: step", f"{seconds * 1e6:.0f} us", note, data)
    with timed_steps() as times:
        for _ in range(1 if run.simulated else WARM):
            job(*feeds)
    from flow_cuda.driver.capture import describe
    from flow_cuda.driver.gpu import recorded_parts

    host, cut = (
        min(times) * 1e6,
        describe(recorded_parts(job.executable()._launch)).replace("\n", "; "),
    )
    yield Row(f"{workload}: host time of a step", f"{host:.1f} us", cut[:200])


def launches(run: Run, workload: str) -> Iterator[Row]:
    """Time the launches of a step, one by one, and compare them with the bandwidth."""
    session, job, feeds = bench_job(run, workload)
    job(*feeds)
    from flow_cuda.driver.gpu import recorded_parts

    hardware, totals = hardware_of(session), {}
    works = [w for part in recorded_parts(job.executable()._launch) for w in part.queued]
    copied = copy_rate(run, hardware)
    for work in works:
        seconds = launch_seconds(run, hardware, work)
        touched = work.touched()
        nbytes = sum(b - a for a, b in {*touched.reads, *touched.writes})
        count, bytes_, took = totals.get(work.title, (0, 0, 0.0))
        totals[work.title] = count + 1, bytes_ + nbytes, took + seconds
    whole = sum(took for *_, took in totals.values())
    yield Row(f"{workload}: launches", str(len(works)), f"{whole * 1e6:.0f} us one by one")
    for title, (count, nbytes, took) in sorted(totals.items(), key=lambda x: -x[1][2])[:40]:
        share = nbytes / took / copied
        note = f"{count} times, {nbytes} bytes, {share:.0%} of the bandwidth of copies"
        data = {"seconds": took, "bytes": float(nbytes), "count": float(count)}
        yield Row(f"{workload}: {title}", f"{took * 1e6:.1f} us", note, data)


def launch_seconds(run: Run, hardware: Any, work: Any, repeats: int = 5) -> float:
    """Return the seconds of a launch: the minimum over repeats, by events on a GPU."""
    stream = hardware.compute
    if run.simulated:
        started = time.perf_counter()
        work.queue(stream)
        hardware.synchronize(hardware.record(stream))
        return time.perf_counter() - started
    import cupy

    found = []
    for _ in range(repeats):
        start_, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start_.record(stream)
        work.queue(stream)
        stop.record(stream)
        stop.synchronize()
        found.append(cupy.cuda.get_elapsed_time(start_, stop) / 1000)
    return float(min(found))


def copy_rate(run: Run, hardware: Any) -> float:
    """Return the bytes per second that a copy on the device reads and writes."""
    from flow_cuda.device.arrays import GpuArena
    from flow_cuda.device.launch import CopyLaunch

    size = 1 << (16 if run.simulated else 28)
    one, two = (
        GpuArena(size, hardware.allocate(size), hardware).view(0, (size,), np.uint8)
        for _ in range(2)
    )
    return 2 * size / launch_seconds(run, hardware, CopyLaunch(hardware, two, one))


def peer(run: Run, workload: str, name: str) -> Iterator[Row]:
    """Measure the same step in another library."""
    if importlib.util.find_spec(PEERS[name]) is None:
        yield Row(f"{workload}: {name}", "skipped", f"{PEERS[name]} is not installed")
        return
    import cuda_peers

    feeds = bench_feeds(run, workload)
    with contextlib.redirect_stdout(io.StringIO()):  # autotuning is verbose
        call = cuda_peers.PEERS[name](workload, feeds, workload in HALVES)
        loss = call()
        seconds = best_of(run, call, 2.0)
    data = {"seconds": seconds, "loss": loss}
    yield Row(f"{workload}: {name}", f"{seconds * 1e6:.0f} us", f"first loss {loss:.4f}", data)


def cudnn(run: Run) -> Iterator[Row]:
    """List cuDNN's plans and their times in each layout and type."""
    import cuda_dnn

    hardware = start(run).driver(Device("gpu", 0, 0)).hardware
    for name, result, note in cuda_dnn.cudnn_plans(hardware, run.simulated):
        yield Row(name, "skipped" if result == "missing" else result, note)
        if run.left() < 3:
            return


def tests(run: Run) -> Iterator[Row]:
    """Run OneFlow's unmodified single-op tests on one GPU."""
    import cuda_tests

    yield from cuda_tests.op_tests(run)


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        environment, steady, rates, launches, step, peer, kernels, programs, cudnn, nccl, tests,
    )
}  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main())
