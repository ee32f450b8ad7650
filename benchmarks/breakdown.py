"""Break down the time of a training step into op classes, with the lower bound of each class.

    python breakdown.py --workload mlp,lenet                    # tables in Markdown
    python breakdown.py --workload mlp --png breakdown.png      # and a plot, with matplotlib
    BENCH_THREADS=1 python breakdown.py --workload resnet50
    BENCH_PRECISION=bfloat16 python breakdown.py --workload resnet50

Jobs of this framework first measure the rates of this machine with the given number of threads.
The floor (lower bound) of a class is the time of its arithmetic at the rate of a large matrix
product, or the time of its memory traffic: at the rate of main memory if an op accesses more bytes
than the cache holds, else at the rate of the cache.  The floor of a step is the time of the
arithmetic of its products and convolutions alone.  Steps and ops are timed in turn, and all figures
are minima.  The time of a step beyond the sum of its ops' minima is a separate class: feeds, calls
between ops, and the difference between the best runs of single ops and a whole step.
"""
# ruff: noqa: E402 - numpy reads the environment variables set below when it is imported

import os

THREADS = os.environ.get("BENCH_THREADS", "2")
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, THREADS)

import argparse
import json
import time
from dataclasses import dataclass, field
from math import prod, sqrt

import data
import numpy as np
from flow_bench import STEPS, make_job

import oneflow as flow
import oneflow.typing as tp

CLASSES = {
    "products": ("matmul", "batch_matmul", "onednn_matmul", "onednn_matmul_sgd"),
    "convolutions": ("conv",),
    "normalization": ("normalization", "layer_norm", "onednn_norm"),
    "pooling": ("max_pool", "avg_pool", "onednn_max_pool"),
    "updates": ("sgd_update", "momentum_update", "adam_update", "onednn_sparse", "indexed_slices",
                "onednn_sgd_up", "onednn_momentum_up", "onednn_adam_up", "onednn_la"),
    "softmax and loss": ("softmax", "sparse_softmax", "sigmoid_cross"),
    "moved data": ("onednn_reorder", "transpose", "gather", "batch_gather", "concat", "slice",
                   "unsorted_", "onednn_add_to_rows", "reshape", "cast", "split_like"),
}  # fmt: skip
"""Prefixes of op types, or exact op types, for each class; the first match wins."""
ELEMENTWISE, AROUND = "elementwise and sums", "feeds, dispatch, unsteadiness"
CACHE = 1 << 21
"""Number of bytes per thread above which an op's arrays do not fit into a core's cache."""


def class_of(type_):
    """Return the class of an op type.

    >>> class_of("onednn_conv_data_grad"), class_of("fused"), class_of("onednn_norm_relu")
    ('convolutions', 'elementwise and sums', 'normalization')
    """
    if "conv" in type_:
        return "convolutions"
    fits = (c for c, names in CLASSES.items() if type_.startswith(names))
    return next(fits, ELEMENTWISE)


def arithmetic(task, types):
    """Return the FLOPs of a product or convolution, 2 per multiply-add; return 0 for other ops."""
    kind, ins, outs = class_of(task.type), *types
    if kind == "products":
        c = ins[0] if task.type == "onednn_matmul_sgd" else outs[0]
        a, b = ins[1:3] if task.type == "onednn_matmul_sgd" else ins[:2]
        stack = prod(c.shape[:-2])
        shared = prod(b.shape[:-2]) < stack  # one matrix for the whole stack
        return 2 * sqrt(a.size * b.size * c.size / (1 if shared else stack))
    if kind == "convolutions":
        back = "filter_grad" in task.type
        image, weight = (ins[0], outs[0]) if back else (ins[0], ins[1])
        reached = outs[0] if not back and "data_grad" not in task.type else image
        return 2 * reached.size * weight.size / weight.shape[0]
    return 0


def moved(task, types):
    """Return the minimum bytes that an op reads and writes; of tables, only looked-up rows."""
    ins, outs = types
    sizes = [t.nbytes for t in (*ins, *outs)]
    if task.type in ("gather", "batch_gather"):
        return 2 * outs[0].nbytes + ins[1].nbytes
    if task.type.startswith(("onednn_sparse", "indexed_slices")):
        tables = len([t for t in ins if t.shape == ins[0].shape])
        rows = next(t for t in ins[1:] if t.dtype.is_floating)
        return rows.nbytes * (1 + 2 * tables)
    if class_of(task.type) == "updates":
        return sum(sizes) + sum(t.nbytes for t in ins if t.shape == ins[0].shape) - ins[0].nbytes
    return sum(sizes)


@dataclass
class Rates:
    """The rates of this machine in FLOPs and bytes per second."""

    flops: float
    memory: float
    cache: float

    def floor(self, flops, nbytes):
        """Return the lower bound of an op's time in seconds."""
        if flops:
            return flops / self.flops
        held = nbytes <= CACHE * int(THREADS)
        return nbytes / (self.cache if held else self.memory)


def measured_rates():
    """Measure the rates of large products, and of sums of arrays in main memory and in cache."""
    return Rates(
        max(2 * n**3 / _seconds(flow.matmul, (n, n), 30) for n in (512, 768, 1024)),
        3 * 4 * (1 << 24) / _seconds(flow.math.add, (1 << 24,), 16),
        3 * 4 * (1 << 16) * int(THREADS) / _seconds(flow.math.add, (int(THREADS) << 16,), 400),
    )


def _seconds(op, shape, times):
    """Return the minimum time of a launch of a binary op."""
    flow.clear_default_session()

    @flow.global_function()
    def rate(x: tp.Numpy.Placeholder(shape), y: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return op(x, y)

    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    rate(x, x)
    (task,) = [t for t in rate.plan().tasks if t.inputs]
    launches = rate.executable().bind_task(task)
    return min(_timed(launches) for _ in range(times))


def _timed(launches):
    started = time.perf_counter()
    for launch in launches:
        launch()
    return time.perf_counter() - started


@dataclass
class Row:
    """The figures of an op class: seconds, floor, launches, and the slowest ops (seconds, name)."""

    seconds: float = 0.0
    floor: float = 0.0
    launches: int = 0
    worst: list = field(default_factory=list)


@dataclass
class Breakdown:
    """The figures of a workload's step: time, floor, and op classes."""

    workload: str
    step: float
    floor: float
    rows: dict


def breakdown(workload, rates, steps=None):
    """Time the steps of a workload and, between the steps, each of its ops."""
    flow.clear_default_session()
    pool = data.batches(workload)
    job = make_job(workload, pool[0])
    flow.load_variables(data.parameters(workload))
    job(*pool[0])
    plan, executable = job.plan(), job.executable()
    bound = [executable.bind_task(task) for task in plan.tasks]
    best, step = [float("inf")] * len(bound), float("inf")
    for i in range(steps or sum(STEPS[workload])):
        inputs = pool[i % len(pool)]
        started = time.perf_counter()
        job(*inputs)
        step = min(step, time.perf_counter() - started)
        for target, source in zip(executable.feeds, inputs, strict=True):
            np.copyto(target, source)  # the previous step has overwritten this memory
        best = [min(b, _timed(launches)) for b, launches in zip(best, bound, strict=True)]
    return _summed(workload, rates, plan, step, best, [len(b) for b in bound])


def _summed(workload, rates, plan, step, best, launches):
    rows, floor = {}, 0.0
    for task, seconds, count in zip(plan.tasks, best, launches, strict=True):
        types = tuple([plan.buffers[i].type for i in side] for side in (task.inputs, task.outputs))
        flops = arithmetic(task, types)
        least = min(seconds, rates.floor(flops, moved(task, types)))
        floor += flops / rates.flops
        row = rows.setdefault(class_of(task.type), Row())
        row.seconds, row.floor = row.seconds + seconds, row.floor + least
        row.launches += count
        row.worst.append((seconds - least, task.op))
    fed = sum(plan.buffers[i].type.nbytes for i in plan.feeds)
    around = max(0.0, step - sum(best))
    rows[AROUND] = Row(around, min(around, rates.floor(0, 2 * fed)), 0)
    return Breakdown(workload, step, floor, rows)


def table(found):
    """Format a breakdown as Markdown, with times in ms."""
    title = f"`{found.workload}`: {found.step * 1e3:.3f} ms, {found.step / found.floor:.2f} times"
    lines = [
        f"{title} the floor of {found.floor * 1e3:.3f} ms", "",
        "| class | launches | ms | floor | excess | slowest ops |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in sorted(found.rows.items(), key=lambda item: -item[1].seconds):
        worst = ", ".join(f"{op} {s * 1e3:.3f}" for s, op in sorted(row.worst)[:-3:-1])
        times = (row.seconds, row.floor, row.seconds - row.floor)
        cells = [name, str(row.launches or ""), *(f"{s * 1e3:.3f}" for s in times), worst]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(results, path):
    """Plot one bar per workload, in multiples of its floor, divided by class; floors are dark."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 0.8 * len(results) + 1.6), layout="constrained")
    names = list(dict.fromkeys(name for r in results for name in r.rows))
    colors = dict(zip(names, pyplot.get_cmap("tab10").colors * 2, strict=False))
    for y, found in enumerate(results):
        left = 0.0
        for name in (n for n in names if n in found.rows):
            row = found.rows[name]
            parts = (row.floor / found.floor, 1.0), ((row.seconds - row.floor) / found.floor, 0.45)
            for width, alpha in parts:
                axes.barh(y, width, left=left, color=colors[name], alpha=alpha)
                left += width
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colors[n]) for n in names]
    axes.legend(handles, names, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    axes.set_yticks(range(len(results)), [r.workload for r in results])
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("multiples of the step's floor; pale: beyond the floor of the class")
    figure.savefig(path, dpi=120)


def main():
    """Print the tables, and plot on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", help="repeat, or comma-separated")
    parser.add_argument("--steps", type=int, help="per workload; default as flow_bench.py")
    parser.add_argument("--png", help="file for the plot")
    args = parser.parse_args()
    rates = measured_rates()
    gigas = [rate / 1e9 for rate in (rates.flops, rates.memory, rates.cache)]
    units = ("GFLOP/s in products", "GB/s of memory", "GB/s of cache")
    text = ", ".join(f"{giga:.0f} {unit}" for giga, unit in zip(gigas, units, strict=True))
    print(f"{THREADS} threads: {text}\n", flush=True)
    results = []
    for workload in [w for text in args.workload or ["mlp"] for w in text.split(",")]:
        results.append(breakdown(workload, rates, args.steps))
        print(table(results[-1]), flush=True)
        print("BENCHJSON " + json.dumps(_record(results[-1])) + "\n", flush=True)
    if args.png:
        picture(results, args.png)


def _record(found):
    rows = {name: [round(row.seconds * 1e3, 4), round(row.floor * 1e3, 4)]
            for name, row in found.rows.items()}  # fmt: skip
    return {"workload": found.workload, "threads": int(THREADS), "step_ms": found.step * 1e3,
            "floor_ms": found.floor * 1e3, "classes_ms_and_floor": rows}  # fmt: skip


if __name__ == "__main__":
    main()
