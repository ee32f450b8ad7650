"""Time the benchmark networks.

    python flow_bench.py --workload mlp,lenet          # one JSON line per workload
    BENCH_PRECISION=bfloat16 python flow_bench.py --workload resnet50

The script prints one line per workload: ``BENCHJSON {...}`` with the median of the step times, the
time to trace and compile, peak resident memory, the first losses, and the predictions of the plan.
"""
# ruff: noqa: E402 - numpy reads the environment variables set below when it is imported

import os

THREADS = os.environ.get("BENCH_THREADS", "2")
PRECISION = os.environ.get("BENCH_PRECISION", "float32")
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, THREADS)
os.environ.setdefault("FLOW_PLAN_CACHE", "0")  # the time to the first result includes compilation

import argparse
import functools
import json
import resource
import statistics
import time

import data
import loading
import networks
import numpy as np

import oneflow as flow
import oneflow.typing as tp

#          warm-up, timed steps
STEPS = {
    "mlp": (20, 200), "lenet": (4, 20), "resnet50": (1, 3), "bert_mini": (2, 6),
    "bert_base": (1, 3), "wide_deep_sgd": (2, 10), "wide_deep_adam": (2, 10),
    "overhead": (10, 60), "compile_5k": (0, 5), "compile_20k": (0, 5),
}  # fmt: skip
RATES = {"mlp": 0.1, "lenet": 0.1, "resnet50": 0.01, "wide_deep_sgd": 0.05}


def optimizer(workload):
    schedule = functools.partial(flow.optimizer.PiecewiseConstantScheduler, [])
    if workload in RATES:
        momentum = 0.9 if workload == "resnet50" else 0
        return flow.optimizer.SGD(schedule([RATES[workload]]), momentum=momentum)
    rate = 1e-3 if workload == "wide_deep_adam" else 1e-4
    return flow.optimizer.Adam(schedule([rate]), epsilon=1e-8, do_bias_correction=True)


def network(workload):
    if workload in networks.BERT:
        config = networks.BERT[workload]
        return functools.partial(networks.bert, config, data.VOCABULARY)
    if workload in networks.UNROLLED:
        return functools.partial(networks.unrolled, networks.UNROLLED[workload])
    named = {"overhead": networks.chain, "wide_deep_sgd": networks.wide_deep,
             "wide_deep_adam": networks.wide_deep}  # fmt: skip
    return named.get(workload) or getattr(networks, workload)


def make_job(workload, example):
    """Return the job function of a workload, for batches like the example."""
    body, trains = network(workload), workload in RATES or workload not in NOT_TRAINED

    def job(*blobs):
        result = body(*blobs)
        if trains:
            optimizer(workload).minimize(result)
        return result

    parameters = [f"x{i}" for i in range(len(example))]
    scope = {"job": job}
    exec(f"def {workload}({', '.join(parameters)}): return job({', '.join(parameters)})", scope)
    function = scope[workload]
    function.__annotations__ = {
        p: tp.Numpy.Placeholder(x.shape, dtype=_dtype(x))
        for p, x in zip(parameters, example, strict=True)
    } | {"return": tp.Numpy}
    kind = "train" if trains else "predict"
    return flow.global_function(type=kind, function_config=settings(workload))(function)


LAZY = {"wide_deep_adam": ("deep", "wide")}
"""Tables of which Adam updates only the looked-up rows, like PyTorch's SparseAdam."""


def settings(workload):
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(PRECISION == "bfloat16")
    if workload in LAZY:
        tables = {"op_name": list(LAZY[workload])}
        config.indexed_slices_optimizer_conf({"include_op_names": tables})
    return config


NOT_TRAINED = ("overhead", *networks.UNROLLED)


def _dtype(array):
    return {"float32": flow.float, "int32": flow.int32}[array.dtype.name]


def measure(name, workload, steps=None):
    warm, timed = STEPS[workload]
    timed = steps or timed
    pool = data.batches(workload)
    started = time.perf_counter()
    job = make_job(workload, pool[0])
    if workload not in NOT_TRAINED:
        flow.load_variables(data.parameters(workload))
    build = time.perf_counter() - started
    started = time.perf_counter()
    losses = [float(job(*pool[0]).reshape(-1)[0])]
    first = time.perf_counter() - started
    for i in range(1, warm):
        losses.append(float(job(*pool[i % len(pool)]).reshape(-1)[0]))
    times = []
    for i in range(max(warm, 1), max(warm, 1) + timed):
        inputs = pool[i % len(pool)]
        started = time.perf_counter()
        result = job(*inputs)
        times.append((time.perf_counter() - started) * 1e3)
        losses.append(float(result.reshape(-1)[0]))
    return record(name, workload, job, times, losses, build, first)


def record(name, workload, job, times, losses, build, first):
    median = statistics.median(times)
    arena = job.plan().arenas[0]
    rec = {
        "impl": name, "workload": workload, "ok": bool(np.isfinite(losses).all()),
        "threads": int(THREADS), "median_ms": round(median, 4), "min_ms": round(min(times), 4),
        "n": len(times), "build_s": round(build, 3), "first_step_s": round(first, 3),
        "compile_s": round(max(0.0, first - median / 1e3), 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "arena_mb": round(arena.nbytes / 2**20, 2),
        "arena_over_bound": round(arena.nbytes / max(1, arena.lower_bound), 4),
        "values": [round(v, 5) for v in losses[:4]],
    }  # fmt: skip
    if workload in LAZY:
        rec["note"] = "lazy Adam on the tables: update the looked-up rows only"
    if workload == "overhead":
        rec["per_op_us"] = round(median * 1e3 / networks.CHAIN, 4)
    if workload in networks.UNROLLED:
        rec["trace_compile_s"] = round(build + first, 3)
    return rec


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", help="repeat, or comma-separated")
    parser.add_argument("--name", default="flow")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    wanted = [w for text in args.workload or ["mlp,overhead"] for w in text.split(",")]
    for workload in wanted:
        flow.clear_default_session()
        try:
            if workload == "loader":
                rec = loading.measure(args.name, args.steps)
            else:
                rec = measure(args.name, workload, args.steps)
        except Exception as error:  # noqa: BLE001 - reported in the record; the others still run
            rec = {"impl": args.name, "workload": workload, "ok": False, "error": repr(error)[:400]}
        print("BENCHJSON " + json.dumps(rec), flush=True)


if __name__ == "__main__":
    main()
