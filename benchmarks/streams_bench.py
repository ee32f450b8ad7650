"""Compare kernels that use all cores in turn with concurrent streams that divide the cores.

    python streams_bench.py --units 64,128,256,512,1024 --cores 2

For data parallelism and for a pipeline of two stages, one plan of each kind runs, interleaved with
the other, in one process; times are minimum wall times of a step.  The script prints
``BENCHJSON {...}`` with the times and the number of stream threads that the compiler would choose
for the plan.  ``--cores 1 --threads 2`` compares stream threads with single-threaded kernels; with
``FLOW_DISABLE_PLUGINS=flow-onednn``, the kernels are numpy's.
"""

import argparse
import json
import os
import time

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.thread_budget import Budget
from flow_core.frontend.session import session as sessions
from flow_core.plugins.host import load_plugins

BATCH, LAYERS, MICRO_BATCHES = 512, 4, 4
STRETCH = 8
"""Number of consecutive steps of one kind, as BLAS's threads spin for a while after the other."""


def make_job(form, units):
    config = flow.function_config()
    if form == "pipeline":
        config.train.num_gradient_accumulation_steps(MICRO_BATCHES)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((BATCH, units))) -> tp.Numpy:
        init = flow.random_normal_initializer(stddev=0.02)
        for i in range(LAYERS):
            ids = "0:0-1" if form == "data" else f"0:{2 * i // LAYERS}"
            with flow.scope.placement("gpu", ids):
                x = flow.layers.dense(
                    x, units, activation=flow.math.tanh, kernel_initializer=init, name=f"h{i}"
                )
        with flow.scope.placement("gpu", ids):
            loss = flow.math.reduce_mean(x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return job


def compiled(form, units, cores, threads, feeds):
    """Return a bound plan in a new session; if ``threads`` is None, the plan decides."""
    disabled = tuple(filter(None, os.environ.get("FLOW_DISABLE_PLUGINS", "").split(",")))
    settings = Settings(
        emulate_gpus=2, disabled_plugins=disabled, stream_threads=threads,
        cores=Budget(cores, "--cores"),
    )  # fmt: skip
    sessions._default[:] = [sessions.Session(load_plugins(settings), settings)]
    job = make_job(form, units)
    job(*feeds)
    return job.executable()


def measure(form, units, cores, threads, rounds):
    feeds = (np.random.default_rng(0).normal(size=(BATCH, units)).astype(np.float32),)
    ways = {count: compiled(form, units, cores, count, feeds) for count in (1, threads)}
    chosen = compiled(form, units, cores, None, feeds).plan.workers
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for count, executable in ways.items():
            for _ in range(STRETCH):
                started = time.perf_counter()
                executable.run(feeds)
                best[count] = min(best[count], time.perf_counter() - started)
    return {
        "bench": "streams", "form": form, "units": units, "batch": BATCH, "cores": cores,
        "in_turn_ms": round(best[1] * 1e3, 3), "at_once_ms": round(best[threads] * 1e3, 3),
        "speed_up": round(best[1] / best[threads], 3), "chosen": chosen,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", default="64,128,256,512,1024", help="widths, comma-separated")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of streams at once")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    for form in ("data", "pipeline"):
        for units in map(int, args.units.split(",")):
            rec = measure(form, units, args.cores, args.threads, args.rounds)
            print("BENCHJSON " + json.dumps(rec), flush=True)


if __name__ == "__main__":
    main()
