"""Wall time of a step with its streams on one thread and on several, where products use one core.

    python streams_bench.py --units 64,128,256,512,1024 --threads 2

For data parallelism and for a pipeline of two stages: both ways of running one plan take turns in
one process, and the smallest times count.  Prints ``BENCHJSON {...}`` with the times, the number
of threads that the plan itself would choose, and seconds per task.
"""
# ruff: noqa: E402 - numpy reads the variables set below when it is imported

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("ONEFLOW_EMULATE_GPUS", "2")

import argparse
import json
import time
from dataclasses import replace

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session import default_session
from flow_core.runtime.executable import Executable

BATCH, LAYERS, MICRO_BATCHES = 512, 4, 4


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


def measure(form, units, threads, rounds):
    flow.clear_default_session()
    session, job = default_session(), make_job(form, units)
    feeds = (np.random.default_rng(0).normal(size=(BATCH, units)).astype(np.float32),)
    job(*feeds)
    plan, registry = job.plan(), session.registry
    ways = {
        count: Executable(
            replace(plan, workers=count),
            registry,
            session.driver,
            session.variable,
            comm=registry.comm,
        )
        for count in (1, threads)
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for count, executable in ways.items():
            started = time.perf_counter()
            executable.run(feeds)
            best[count] = min(best[count], time.perf_counter() - started)
    return {
        "bench": "streams", "form": form, "units": units, "batch": BATCH, "tasks": len(plan.tasks),
        "one_ms": round(best[1] * 1e3, 3), f"threads_{threads}_ms": round(best[threads] * 1e3, 3),
        "speed_up": round(best[1] / best[threads], 3), "chosen": plan.workers,
        "us_per_task": round(best[1] * 1e6 / len(plan.tasks), 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", default="64,128,256,512,1024", help="widths, comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    for form in ("data", "pipeline"):
        for units in map(int, args.units.split(",")):
            rec = measure(form, units, args.threads, args.rounds)
            print("BENCHJSON " + json.dumps(rec), flush=True)


if __name__ == "__main__":
    main()
