"""Compare the CPU time of several emulated devices with that of one, for the same global batch.

    python devices_bench.py --batch 100,1000 --devices 4

The jobs run interleaved in one process with one BLAS thread.  The time is the CPU time of the whole
process (all threads) over a series of steps, and the minimum over many series.  The script prints
one line per job and batch: ``BENCHJSON {...}`` with the time and its ratio to that of one device.
"""
# ruff: noqa: E402 - numpy reads the environment variables set below when it is imported

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("ONEFLOW_EMULATE_GPUS", "4")

import argparse
import json
import time

import networks
import numpy as np

import oneflow as flow
import oneflow.typing as tp

FORMS = {
    "data": ("greedy", None, True),  # one update of weights for all devices
    "data, memory apart": ("greedy", None, False),  # each device updates its own weights
    "data, states on one": ("greedy", "non_distributed", True),
    "data, states split": ("greedy", "distributed_split", True),
    "auto": ("auto", None, True),  # the selector's cheapest plan
}
"""The selector, optimizer placement and replica sharing of each variant."""


def mlp(x, y):
    init = flow.random_normal_initializer(stddev=0.03)
    h = flow.layers.dense(x, 512, activation=flow.nn.relu, kernel_initializer=init, name="fc1")
    logits = flow.layers.dense(h, 10, kernel_initializer=init, name="fc2")
    return networks.cross_entropy(y, logits)


def make_job(name, devices, batch, selector="greedy", mode=None, share=True, momentum=0.0):
    """Return a train job of the MLP (784-512-10) on some devices, with its own variables."""

    def job(
        x: tp.Numpy.Placeholder((batch, 784)),
        y: tp.Numpy.Placeholder((batch,), dtype=flow.int32),
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices), flow.scope.namespace(name):
            loss = mlp(x, y)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=momentum).minimize(loss)
        return loss

    job.__name__ = name
    config = flow.function_config()
    config.sbp_selector(selector)
    config.share_replicas(share)
    if mode:
        config.optimizer_placement_optimization_mode(mode)
    return flow.global_function(type="train", function_config=config)(job)


def stretch(job, feeds, steps):
    started = time.process_time()
    for _ in range(steps):
        job(*feeds)
    return (time.process_time() - started) / steps


def measure(batch, devices, rounds, steps, momentum):
    flow.clear_default_session()
    rng = np.random.default_rng(0)
    feeds = (
        rng.normal(size=(batch, 784)).astype(np.float32),
        rng.integers(0, 10, batch).astype(np.int32),
    )
    jobs = {"one": make_job("one", "0:0", batch, momentum=momentum)}
    for name, form in FORMS.items():
        jobs[name] = make_job(name, f"0:0-{devices - 1}", batch, *form, momentum)
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(rounds):
        for name, job in jobs.items():
            best[name] = min(best[name], stretch(job, feeds, steps))
    for name, seconds in best.items():
        yield {
            "bench": "devices", "job": name, "devices": 1 if name == "one" else devices,
            "batch": batch, "momentum": momentum, "cpu_ms": round(seconds * 1e3, 4),
            "ratio": round(seconds / best["one"], 3), "arena_mb": _arenas(jobs[name]),
        }  # fmt: skip


def _arenas(job):
    return [round(a.nbytes / 2**20, 2) for a in job.plan().arenas]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="100,1000", help="global batches, comma-separated")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--momentum", type=float, default=0.0, help="of SGD")
    args = parser.parse_args()
    for batch in map(int, args.batch.split(",")):
        for rec in measure(batch, args.devices, args.rounds, args.steps, args.momentum):
            print("BENCHJSON " + json.dumps(rec), flush=True)


if __name__ == "__main__":
    main()
