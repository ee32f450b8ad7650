"""A recurrent network as a loop beside JAX: `flow.scan` and `jax.lax.scan`, per position.

    python loops_bench.py [--length 1000] [--batch 8] [--width 64] [--rounds 5]

JAX, which must be installed, and this package take turns in one process each.
"""

import argparse
import subprocess
import sys
import time

import numpy as np


def arrays(options):
    rng = np.random.default_rng(0)
    shape = options.length, options.batch, options.width
    w = 0.1 * rng.normal(size=(options.width, options.width))
    return rng.normal(size=shape).astype(np.float32), w.astype(np.float32)


def flow_calls(x, w):
    """Return a call that predicts and one that trains."""
    import oneflow as flow
    import oneflow.typing as tp

    def network(x):
        weight = flow.get_variable("w", w.shape, initializer=w)

        def cell(h, now):
            h = flow.math.tanh(now + flow.matmul(h, weight))
            return h, h

        return flow.scan(cell, flow.zeros(x.shape[1:]), x)

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        return network(x)[0]

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(network(x)[1]))
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    return lambda: predict(x), lambda: train(x)


def jax_calls(x, w):
    """Return a call that predicts and one that trains."""
    import jax
    import jax.numpy as jnp

    def network(w, x):
        def cell(h, now):
            h = jnp.tanh(now + h @ w)
            return h, h

        return jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)

    predict = jax.jit(lambda w, x: network(w, x)[0])
    slope = jax.grad(lambda w, x: jnp.mean(jnp.square(network(w, x)[1])))
    train = jax.jit(lambda w, x: w - 0.1 * slope(w, x))
    return lambda: predict(w, x).block_until_ready(), lambda: train(w, x).block_until_ready()


def work(kind, options):
    """Print the microseconds per position of both calls for each line of standard input."""
    both = {"flow": flow_calls, "jax": jax_calls}[kind](*arrays(options))
    for call in both:
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        for call in both:
            started = time.perf_counter()
            for _ in range(5):
                call()
            times.append((time.perf_counter() - started) / 5 / options.length)
        print(*times, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("length", 1000), ("batch", 8), ("width", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--jax", default=sys.executable, help="a Python that has JAX")
    options = parser.parse_args()
    if options.work:
        return work(options.work, options)
    running = {
        kind: subprocess.Popen(
            [python, __file__, *sys.argv[1:], "--work", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for kind, python in (("flow", sys.executable), ("jax", options.jax))
    }  # fmt: skip
    times = {kind: [] for kind in running}
    for process in running.values():
        process.stdout.readline()
    for _ in range(options.rounds):
        for kind, process in running.items():
            print(file=process.stdin, flush=True)
            times[kind].append([1e6 * float(t) for t in process.stdout.readline().split()])
    for process in running.values():
        process.communicate()
    print("| call | flow, us per position | JAX | ratio | worst ratio of a round |")
    print("|---|---|---|---|---|")
    for k, name in enumerate(("predict", "train")):
        ours, theirs = ([row[k] for row in times[kind]] for kind in ("flow", "jax"))
        first, second = (sorted(row)[len(row) // 2] for row in (ours, theirs))
        worst = max(a / b for a, b in zip(ours, theirs, strict=True))
        print(f"| {name} | {first:.2f} | {second:.2f} | {first / second:.2f} | {worst:.2f} |")
    return None


if __name__ == "__main__":
    main()
