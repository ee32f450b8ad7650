"""Measure manual data parallelism in one process: a batch split into parts, written in numpy.

    python devices_floor.py --batch 100,1000 --parts 4

One step of the MLP of `devices_bench.py` (784-512-10, SGD) runs as plain numpy calls on
preallocated arrays: for the whole batch, and in parts, whose gradients are added in order before
one update.  As there is no graph, plan or exchange, the additional time of the parts is the cost of
smaller products and of the sum of gradients.  The time is the CPU time of the process with one BLAS
thread, and the minimum of many runs.  The script prints a line ``BENCHJSON {...}`` for each batch
and number of parts.
"""
# ruff: noqa: E402 - numpy reads the environment variables set below when it is imported

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import time

import numpy as np

ROWS = 32
"""Number of rows of a gradient that are computed and added at a time, to keep them in cache."""


class Part:
    """The arrays of one part of the batch."""

    def __init__(self, x, y):
        n = len(x)
        self.x, self.rows, self.y = x, np.arange(n), y
        self.h, self.back = (np.empty((n, 512), np.float32) for _ in range(2))
        self.p = np.empty((n, 10), np.float32)


class Net:
    """The weights, and the gradients in which all parts are accumulated."""

    def __init__(self, rng):
        shapes = ((512, 784), (512,), (10, 512), (10,))
        self.weights = [rng.normal(size=s).astype(np.float32) * np.float32(0.03) for s in shapes]
        self.grads = [np.empty(s, np.float32) for s in shapes]
        self.scratch = [np.empty((ROWS, s[-1]), np.float32) for s in shapes]

    def step(self, parts, rate):
        for k, part in enumerate(parts):
            self.backward(part, sum(len(p.x) for p in parts), first=k == 0)
        for w, g in zip(self.weights, self.grads, strict=True):
            np.multiply(g, rate, g)
            np.subtract(w, g, w)

    def backward(self, part, batch, first):
        w1, b1, w2, b2 = self.weights
        np.matmul(part.x, w1.T, part.h)
        np.add(part.h, b1, part.h)
        np.maximum(part.h, 0, out=part.h)
        np.matmul(part.h, w2.T, part.p)
        np.add(part.p, b2, part.p)
        np.subtract(part.p, part.p.max(1, keepdims=True), part.p)
        np.exp(part.p, part.p)
        np.divide(part.p, part.p.sum(1, keepdims=True), part.p)
        part.p[part.rows, part.y] -= 1
        np.multiply(part.p, np.float32(1 / batch), part.p)
        np.matmul(part.p, w2, part.back)
        np.multiply(part.back, part.h > 0, part.back)
        self.add(2, part.p, part.h, first)
        self.add(0, part.back, part.x, first)
        for k, dy in ((1, part.back), (3, part.p)):
            g = self.grads[k]
            np.add.reduce(dy, 0, None, g) if first else np.add(g, dy.sum(0), g)

    def add(self, k, dy, x, first):
        """Compute the gradient of a weight: the first part writes it, the others add to it."""
        g = self.grads[k]
        if first:
            np.matmul(dy.T, x, g)
            return
        for low in range(0, len(g), ROWS):
            rows = g[low : low + ROWS]
            made = self.scratch[k][: len(rows)]
            np.matmul(dy.T[low : low + ROWS], x, made)
            np.add(rows, made, rows)


def measure(batch, counts, rounds):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 784)).astype(np.float32)
    y = rng.integers(0, 10, batch)
    nets = {n: (Net(rng), split(x, y, n)) for n in counts}
    best = dict.fromkeys(counts, float("inf"))
    for _ in range(rounds):
        for n, (net, parts) in nets.items():
            net.step(parts, np.float32(0.1))
            started = time.process_time()
            net.step(parts, np.float32(0.1))
            best[n] = min(best[n], time.process_time() - started)
    for n, seconds in best.items():
        yield {
            "bench": "devices_floor", "parts": n, "batch": batch,
            "cpu_ms": round(seconds * 1e3, 4), "ratio": round(seconds / best[1], 3),
        }  # fmt: skip


def split(x, y, parts):
    cut = zip(np.array_split(x, parts), np.array_split(y, parts), strict=True)
    return [Part(*arrays) for arrays in cut]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="100,1000", help="global batches, comma-separated")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    for batch in map(int, args.batch.split(",")):
        for rec in measure(batch, (1, args.parts), args.rounds):
            print("BENCHJSON " + json.dumps(rec), flush=True)


if __name__ == "__main__":
    main()
