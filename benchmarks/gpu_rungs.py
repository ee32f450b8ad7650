"""The rungs of `gpu_first.py`: checks that a GPU must pass before its speed is measured."""

from __future__ import annotations

import functools
import gc
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import cuda_small
import numpy as np
from cuda_exact import half_errors, integer_errors, on_device, philox_errors
from cuda_order import Row
from cuda_references.products import gelu
from cuda_rig import Run, compiled_at_once, start, verdict

from flow_core.base.dtypes import as_dtype
from flow_core.sharding.topology import Device
from flow_cuda.device.hardware import EPILOGUES, Product
from flow_cuda.device.launch import CopyLaunch, ProductLaunch, ZeroLaunch
from flow_cuda.driver import cupy_hardware

OFFSETS = (0, 16)
"""Distances of matrices from the alignment of allocations, in bytes."""
TOLERANCES = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def driver_of(run: Run) -> Any:
    """Return the driver of the first GPU, in a new session."""
    return start(run).driver(Device("gpu", 0, 0))


def memory(run: Run) -> Iterator[Row]:
    """Copy arrays of many sizes through pinned memory, and order two streams by an event."""
    driver, rng = driver_of(run), np.random.default_rng(0)
    hardware = driver.hardware
    wrong = []
    for nbytes in (1, 255, 4097, (2 << 20) + 3, *(() if run.simulated else (200 << 20,))):
        values = rng.integers(0, 256, nbytes, np.uint8)
        made = on_device(driver, values)
        if made.address % 256 or not np.array_equal(driver.copy_out(made), values):
            wrong.append(nbytes)
    yield Row("memory: copies", verdict(not wrong), f"wrong: {wrong}" if wrong else "")
    one = on_device(driver, np.ones(1 << 20, np.uint8))
    two, three = (on_device(driver, np.zeros(1 << 20, np.uint8)) for _ in range(2))
    first, second = hardware.stream("first"), hardware.stream("second")
    ordered = True
    for _ in range(20):
        hardware.wait(first, hardware.record(hardware.compute))
        hardware.copy(first, two.address, one.address, one.nbytes)
        hardware.wait(second, hardware.record(first))
        hardware.copy(second, three.address, two.address, two.nbytes)
        hardware.zero(second, two.address, two.nbytes)
        hardware.wait(hardware.compute, hardware.record(second))
        ordered = ordered and bool(driver.copy_out(three).all())
        hardware.zero(hardware.compute, three.address, three.nbytes)
    yield Row("memory: events order streams", verdict(ordered), f"{hardware.free_bytes()} free")


def capture(run: Run) -> Iterator[Row]:
    """Capture and replay a step while garbage in cycles holds device memory."""
    driver = driver_of(run)
    hardware = driver.hardware
    held = [hardware.allocate(1 << 20) for _ in range(4)]

    class Littering(ZeroLaunch):
        def queue(self, stream: Any) -> None:
            cycle: list[Any] = [held.pop()] if held else []
            cycle.append(cycle)
            super().queue(stream)

    x, y = (on_device(driver, np.ones(1000, np.float32)) for _ in range(2))
    step = driver.compile([Littering(hardware, x), CopyLaunch(hardware, y, x)])
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    same = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for value in range(1, 6):
                driver.copy_in(x, np.full(1000, value, np.float32))
                driver.copy_in(y, np.full(1000, value, np.float32))
                step()
                same = same and not driver.copy_out(y).any()
    finally:
        gc.set_threshold(*threshold)
    graphs = sum(graph is not None for graph in step._graphs)
    yield Row("capture: with forced collection", verdict(same and graphs == 1), f"{graphs} graph")


def numbers(run: Run) -> Iterator[Row]:
    """Compare conversions and Philox with numpy, exactly."""
    driver, count = driver_of(run), 20_000 if run.simulated else 1_000_000
    wrong = [*half_errors(driver), *integer_errors(driver)]
    yield Row("numbers: conversions", verdict(not wrong), ", ".join(wrong))
    off = philox_errors(driver, count)
    yield Row("numbers: Philox", verdict(not off), f"{off} of {count} blocks differ")


def products(run: Run) -> Iterator[Row]:
    """Compare products with float64, of every epilogue, type, transposition and alignment."""
    driver, refused = driver_of(run), set[str]()
    sizes = (8, 136, 24) if run.simulated else (256, 520, 392)
    for kind in TOLERANCES:
        wrong, count = [], 0
        for name, *flips, offset in itertools.product(
            EPILOGUES, (False, True), (False, True), OFFSETS
        ):
            product = Product(*sizes, *flips, kind, epilogue=name)
            found = product_error(driver, product, offset)
            if found is None:
                refused.add(f"{name}/{kind}")
                continue
            count += 1
            if found > TOLERANCES[kind]:
                wrong.append(f"{name or 'plain'} {flips} +{offset}: {found:.1e}")
        note = f"{count} products, each eager, captured and replayed; {wrong[:4] or ''}"
        yield Row(f"products: {kind}", verdict(count and not wrong), note)
    yield Row("products: without algorithm", str(len(refused)), ", ".join(sorted(refused)))


def product_error(driver: Any, product: Product, offset: int) -> float | None:
    """Return the largest relative error of a product; None if it has no algorithm."""
    p, rng, kind = product, np.random.default_rng(1), as_dtype(product.dtype).numpy

    def made(*shape: int) -> Any:
        return rng.normal(size=shape).astype(kind)

    a = made(p.k, p.m) if p.transpose_a else made(p.m, p.k)
    b = made(p.n, p.k) if p.transpose_b else made(p.k, p.n)
    bias = made(p.m if p.epilogue == "sum_a" else p.n)
    given = [shifted(driver, x, offset) for x in (a, b, np.zeros((p.m, p.n), kind))]
    more = [on_device(driver, bias)] if p.epilogue else []
    launch = ProductLaunch(driver.hardware, product, *given, *more)
    if not driver.hardware.supports(product, launch.operands()):
        return None
    step, worst = driver.compile([launch]), 0.0
    for _ in range(3):
        driver.copy_in(given[2], np.zeros((p.m, p.n), kind))
        for array in more:
            driver.copy_in(array, bias)
        step()
        results = [driver.copy_out(x) for x in (given[2], *more)]
        expected = expectation(product, a, b, bias)
        for found, wanted in zip(results, expected, strict=False):
            error = np.abs(found.astype(np.float64) - wanted) / (np.abs(wanted) + p.k**0.5)
            worst = max(worst, float(error.max()))
    return worst


def shifted(driver: Any, values: Any, offset: int) -> Any:
    """Return a copy of an array that starts ``offset`` bytes into an allocation."""
    made = driver.allocate(values.nbytes + offset).view(offset, values.shape, values.dtype)
    driver.copy_in(made, values)
    return made


def expectation(p: Product, a: Any, b: Any, bias: Any) -> list[Any]:
    """Return c, and the sum that an epilogue writes, in float64."""
    left, right = (x.astype(np.float64) for x in (a, b))
    left, right = left.T if p.transpose_a else left, right.T if p.transpose_b else right
    c = left @ right
    if p.epilogue in ("sum_a", "sum_b"):
        return [c, left.sum(1) if p.epilogue == "sum_a" else right.sum(0)]
    if "bias" in p.epilogue:
        c = c + bias.astype(np.float64)
    if p.epilogue.startswith("relu"):
        return [np.maximum(c, 0)]
    return [gelu(c)] if p.epilogue.startswith("gelu") else [c]


def cudnn(run: Run) -> Iterator[Row]:
    """Compare cuDNN with numpy, and its captured and reloaded plans with the first ones."""
    from cuda_cases import CudaKit, DeviceKernels
    from cuda_parts import has_cases

    class Few(CudaKit):
        dtypes = ("float32",)
        preloaded = False

    kit = Few() if run.simulated else DeviceKernels()
    if driver_of(run).hardware.dnn is None:
        yield Row("cuDNN", "skipped", "cuDNN is not installed")
        return
    failed, count = [], 0
    ops = [op for op in kit.covered_ops() if op.startswith("cudnn") and has_cases(kit, op)]
    for op in ops[:1] if run.simulated else ops:
        for dtype in kit.dtypes_of(op):
            for case in kit.cases(op, dtype):
                count += 1
                try:
                    kit.check(case)
                except Exception as error:  # noqa: BLE001 - counted and named
                    failed.append(f"{op} {dtype}: {str(error).strip().splitlines()[:1]}")
    yield Row("cuDNN: as numpy", verdict(count and not failed), f"{count} cases {failed[:4] or ''}")
    losses = losses_of_halves(run)
    cupy_hardware.dnn_plans.cache_clear()
    losses += losses_of_halves(run)
    same = len(set(losses)) == 1
    yield Row("cuDNN: eager, captured and reloaded", verdict(same), f"losses {losses}")


def losses_of_halves(run: Run) -> list[float]:
    """Return the losses of three steps of LeNet in float16, trained with a rate of 0."""
    make, feeds = cuda_small.programs(rate=0.0, halves=True)["lenet"]

    def made() -> Any:
        start(run)
        return functools.partial(make("gpu"), *feeds)

    job = compiled_at_once(run, made)
    return [job().item() for _ in range(3)]


def training(run: Run) -> Iterator[Row]:
    """Compare training on GPU and CPU: an MLP with dropout, a small LeNet, an embedding table."""
    import oneflow as flow

    steps = 4 if run.simulated else 20
    for name, (make, feeds) in cuda_small.programs().items():
        losses = {}
        for device in ("cpu", "gpu"):

            def made(device: str = device, make: Any = make, feeds: Any = feeds) -> Any:
                start(run, device)
                flow.config.enable_tensor_float_32_compute(False)
                return functools.partial(make(device), *feeds)

            step = compiled_at_once(run, made) if device == "gpu" else made()
            losses[device] = [step().item() for _ in range(steps)]
        off = float(np.max(np.abs(np.subtract(losses["cpu"], losses["gpu"]))))
        moved = abs(losses["gpu"][0] - losses["gpu"][-1]) > 1e-4
        note = f"losses of {steps} steps are off by {off:.1e} at most"
        yield Row(f"{name}: training like the CPU's", verdict(off < 2e-3 and moved), note)
    yield from dropout(run)


def dropout(run: Run) -> Iterator[Row]:
    """Check that dropout drops the same elements as on the CPU."""
    ones = np.ones((40, 30) if run.simulated else (512, 1000), np.float32)
    kept = {}
    for device in ("cpu", "gpu"):
        start(run, device)
        job = cuda_small.dropout_on(ones, device)
        kept[device] = [job(ones) for _ in range(4)]
    same = all(np.array_equal(a, b) for a, b in zip(*kept.values(), strict=True))
    changes = not np.array_equal(kept["gpu"][0], kept["gpu"][1])
    yield Row("dropout: bits as on the CPU", verdict(same and changes), "4 steps")
