"""Measure compile times of deep transformers on 4 devices, and the costs of the selectors' plans.

``python benchmarks/selection.py [12 24 48]`` compiles training jobs with these numbers of layers in
three interleaved rounds and prints the minimum times; the target is that times grow at most 1.3
times as fast as the number of layers.
``--plans`` instead prints the costs of the selectors' plans for one layer and many batch sizes.
"""

import argparse
import gc
import os
import time

os.environ.setdefault("ONEFLOW_EMULATE_GPUS", "4")
os.environ.setdefault("FLOW_PLAN_CACHE", "0")  # compilation is measured

import oneflow as flow
import oneflow.typing as tp

HIDDEN, HEADS = 256, 8
BATCHES = ((4, 8), (8, 16), (8, 64), (16, 64), (16, 128), (32, 128), (64, 256), (128, 512))


def dense(x, units, name, **more):
    init = flow.random_normal_initializer(stddev=0.02)
    return flow.layers.dense(x, units, kernel_initializer=init, name=name, **more)


def attention(x, name):
    batch, rows, hidden = x.shape
    each = hidden // HEADS

    def split(kind):
        y = flow.reshape(dense(x, hidden, f"{name}-{kind}"), (batch, rows, HEADS, each))
        return flow.transpose(y, (0, 2, 1, 3))

    scores = flow.matmul(split("q"), split("k"), transpose_b=True) * each**-0.5
    mixed = flow.transpose(flow.matmul(flow.nn.softmax(scores), split("v")), (0, 2, 1, 3))
    return dense(flow.reshape(mixed, (batch, rows, hidden)), hidden, f"{name}-o")


def layer(x, name):
    x = x + attention(flow.layers.layer_norm(x, name=f"{name}-ln1"), name)
    y = flow.layers.layer_norm(x, name=f"{name}-ln2")
    y = dense(y, 4 * HIDDEN, f"{name}-up", activation=flow.math.gelu)
    return x + dense(y, HIDDEN, f"{name}-down")


def transformer(layers, batch, rows, selector="auto"):
    """Return an uncompiled training job in a new session."""
    flow.clear_default_session()
    config = flow.function_config()
    config.sbp_selector(selector)
    config.sbp_selector_seconds(120)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, rows, HIDDEN))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            for i in range(layers):
                x = layer(x, f"l{i}")
            loss = flow.math.reduce_mean(flow.math.square(x))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.001])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    return job


def measured(layers):
    """Return the seconds of compilation, those of SBP selection in it, and the number of ops."""
    job = transformer(layers, 4, 8)
    gc.collect()
    started = time.perf_counter()
    compiled = job.compile()
    seconds = time.perf_counter() - started
    return seconds, compiled.physical.report.seconds, len(compiled.optimized_logical)


def compile_times(sizes, rounds=3):
    measured(2)
    least = {}
    for _ in range(rounds):
        for layers in sizes:
            seconds, search, ops = measured(layers)
            old = least.get(layers, (seconds, search, ops))
            least[layers] = (min(old[0], seconds), min(old[1], search), ops)
    print(f"{'layers':>6} {'ops':>6} {'compile':>9} {'selection':>9}  times linear from {sizes[0]}")
    for layers, (seconds, search, ops) in least.items():
        growth = seconds / (least[sizes[0]][0] * layers / sizes[0])
        print(f"{layers:6} {ops:6} {seconds:7.2f} s {search:7.2f} s  {growth:.2f}")


def plans():
    print(f"{'rows':>6} {'selector':>9} {'cost':>12} {'moved':>12} {'gap':>8}  split weights")
    for batch, rows in BATCHES:
        for selector in ("greedy", "optimal"):
            compiled = transformer(1, batch, rows, selector).compile()
            report = compiled.physical.report
            weights = [
                op for op in compiled.optimized_logical.of_type("variable") if op.attrs["trainable"]
            ]
            split = sum("S" in str(compiled.layouts[op.output()].sbp[0]) for op in weights)
            gap = "" if report.gap is None else f"{report.gap:.2%}"
            moved = f"{compiled.plan.bytes_per_step / 2**20:.2f} MiB"
            cost = f"{report.cost.total / 1e6:.1f} us"
            print(f"{batch * rows:6} {report.selector:>9} {cost:>12} {moved:>12} {gap:>8}  {split}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", nargs="*", type=int, default=[12, 24, 48])
    parser.add_argument("--plans", action="store_true")
    options = parser.parse_args()
    plans() if options.plans else compile_times(options.layers)


if __name__ == "__main__":
    main()
