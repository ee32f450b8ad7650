"""Bubbles of pipelines: simulated and measured, beside the formulas.

    python pipeline_bench.py 4 --chunks 2
    flow-dist run -n 4 pipeline_bench.py 4 --seconds 0.06

Each chunk of the network sleeps: forward, for the gradient of its input, and for that of its
weight.  Sleeping needs no core, so several stages run on any machine.  The script prints the
simulated step, in a process per stage, and with ``--seconds`` the measured one, as multiples of the
time for which each stage is busy.  The formulas are those of 1F1B, of interleaved 1F1B (Narayanan
et al. 2021) and of ZB-H1 (Qi et al. 2024) for chunks of equal seconds.
"""

import argparse
import time
from functools import partial
from types import ModuleType

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.authoring.op_rules import like_input
from flow_core.authoring.specs import KernelSpec, OpSpec, emit
from flow_core.base.config import Settings
from flow_core.costs.clock import simulate_step
from flow_core.costs.model import DEFAULT
from flow_core.costs.task_costs import TaskCosts
from flow_core.frontend.session import session as sessions
from flow_core.plugins.host import load_plugins

ROWS, WIDTH = 16, 256


def naps(seconds):
    """Return a plugin with ops that sleep, whose costs are known to the compiler."""

    def bind(ctx):
        x, y = ctx.inputs[0], ctx.outputs[0]
        end = partial(np.copyto, y, x) if x.shape == y.shape else partial(x.sum, 0, out=y)
        return partial(time.sleep, seconds), end

    def gradient(g):
        return g.one("nap", g.dy, g.inputs[1]), g.one("nap_weight", g.dy, g.inputs[1])

    def like_weight(ctx):
        return (ctx.inputs[1],)

    work = {"sbp": lambda ctx: (), "work": lambda ctx: seconds * DEFAULT.devices["cpu"].flops}
    plugin = ModuleType("naps")
    plugin.FLOW_PLUGIN_API = "1.0"
    plugin.flow_register_ops = lambda: (
        OpSpec("nap", ("x", "w"), like_input, gradient=gradient, **work),
        OpSpec("nap_weight", ("dy", "w"), like_weight, **work),
    )
    plugin.flow_register_kernels = lambda: tuple(
        KernelSpec(name, "cpu", bind, name="sleep") for name in ("nap", "nap_weight")
    )
    return plugin


def make_job(stages, chunks, micro_batches):
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(micro_batches)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((ROWS * micro_batches, WIDTH))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            start = flow.get_variable("start", (WIDTH,), initializer=flow.ones_initializer())
            x = x * start  # so that the first chunk computes the gradient of its input
        for i in range(stages * chunks):
            with flow.scope.placement("cpu", f"0:{i % stages}"):
                ones = flow.ones_initializer()
                x = emit("nap", x, flow.get_variable(f"w{i}", (WIDTH,), initializer=ones))
        with flow.scope.placement("cpu", f"0:{stages - 1}"):
            loss = flow.math.reduce_mean(x)
            flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    return job


def measured(job, steps):
    x = np.ones((ROWS * job.plan().micro_batches, WIDTH), np.float32)
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        job(x)
        times.append(time.perf_counter() - started)
    return float(np.median(times[5:]))  # the first steps decide how to wait


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", type=int)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--seconds", type=float, help="measure, with naps of this length")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    nap = args.seconds or 0.06
    settings = Settings.from_env()
    session = sessions.Session(load_plugins(settings, [naps(nap)]), settings)
    sessions._default[:] = [session]
    job = make_job(args.stages, args.chunks, args.micro_batches)
    busy = 3 * nap * args.chunks * args.micro_batches
    costs = TaskCosts(job.plan(), session.registry.ops, session.costs)
    rows = {
        "1F1B": busy + 3 * nap * (args.stages - 1) * (args.chunks if args.chunks > 1 else 1),
        "interleaved 1F1B": busy + 3 * nap * (args.stages - 1) if args.chunks > 1 else None,
        "ZB-H1": busy + nap * (args.stages - 1),
        "simulated": simulate_step(costs, args.stages).seconds,
        "measured": measured(job, args.steps) if args.seconds else None,
    }
    cells = [f"{name} {value / busy:.3f}" for name, value in rows.items() if value]
    shape = f"{args.stages} stages, {args.chunks} chunks, {args.micro_batches} micro-batches"
    print(f"{shape}: busy {busy * 1e3:.0f} ms; {', '.join(cells)}")


if __name__ == "__main__":
    main()
