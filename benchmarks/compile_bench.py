"""Time the import, trace and compilation of the benchmark networks, each in a new process.

    python compile_bench.py lenet:1 resnet50:1 resnet50:4 bert_mini:2x2     # network:devices
    python compile_bench.py --beside ../../before resnet50:4                # and a second checkout
    python compile_bench.py --kept resnet50:4                # and starts with plans kept on disk

Devices are emulated GPUs; ``2x2`` is a grid of four devices.  The script prints the minimum CPU
seconds over several rounds, which alternate with rounds of the second checkout, and the cost of the
selected plan.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = ("import", "trace", "compile", "selection", "bind")
LAYERS = {"gpt": 6, "gpt12": 12}
PLACES = {"1": ("0:0", None), "2": ("0:0-1", None), "4": ("0:0-3", None), "2x2": ("0:0-3", (2, 2))}


# -------------------------------------------------------------------------- in a separate process


def gpt(layers, ids, labels):
    """Build a decoder that uses the embedding's weights for its output."""
    import networks

    import oneflow as flow

    hidden, (batch, length) = 256, ids.shape
    tokens = networks.variable("tok", (4096, hidden))
    x = flow.gather(tokens, ids) + networks.variable("pos", (length, hidden))
    mask = networks.variable("mask", (1, 1, length, length), trainable=False)
    x = flow.reshape(x, (batch * length, hidden))
    for i in range(layers):
        x = block(f"{i}.", x, mask, hidden, (batch, length, hidden))
    logits = flow.matmul(networks.layer_norm("ln", x), tokens, transpose_b=True)
    return networks.cross_entropy(flow.reshape(labels, (-1,)), logits)


def block(name, x, mask, hidden, shape):
    import networks
    from networks import dense, layer_norm

    import oneflow as flow

    y = layer_norm(name + "ln1", x)
    q, k, v = (flow.reshape(dense(name + n, y, hidden, hidden), shape) for n in "qkv")
    mixed = flow.reshape(networks.attention(q, k, v, mask, 4), (-1, hidden))
    x = x + dense(name + "o", mixed, hidden, hidden)
    y = flow.math.gelu(dense(name + "up", layer_norm(name + "ln2", x), hidden, 4 * hidden))
    return x + dense(name + "down", y, 4 * hidden, hidden)


def job_of(workload, place):
    """Return a training job of a benchmark network on some devices, and a batch."""
    import data
    import flow_bench
    import numpy as np

    import oneflow as flow
    import oneflow.typing as tp

    rng = np.random.RandomState(99)
    ids = np.zeros((8, 128), np.int32)
    if workload in LAYERS:
        batch, body = (ids, ids), functools.partial(gpt, LAYERS[workload])
    else:
        batch, body = data.batch(rng, workload), flow_bench.network(workload)
    devices, grid = PLACES[place]
    names = [f"x{i}" for i in range(len(batch))]

    def job(*blobs):
        with flow.scope.placement("gpu", devices, grid):
            result = body(*blobs)
            flow_bench.optimizer(workload).minimize(result)
        return result

    scope = {"job": job}
    exec(f"def network({', '.join(names)}): return job({', '.join(names)})", scope)
    scope["network"].__annotations__ = {
        n: tp.Numpy.Placeholder(x.shape, dtype=flow_bench._dtype(x))
        for n, x in zip(names, batch, strict=True)
    } | {"return": tp.Numpy}
    settings = flow_bench.settings(workload)
    return flow.global_function(type="train", function_config=settings)(scope["network"])


def measure(workload, place):
    """Return the seconds that each stage takes, and the cost of the plan."""
    clock = time.process_time
    times = [clock()]
    import oneflow  # noqa: F401 - the import is measured

    times.append(clock())
    job = job_of(workload, place)
    begun = clock()
    job._variant()
    traced = clock()
    found = job.compile()
    compiled = clock()
    job.executable()
    bound = clock()
    report = found.physical.report  # compiles again if the plan was kept
    return {
        "import": times[1] - times[0],
        "trace": traced - begun,
        "compile": compiled - traced,
        "selection": 0.0 if report is None else report.seconds,
        "bind": bound - compiled,
        "cost": None if report is None else report.cost.total / 1e6,
        "greedy": None if report is None or report.greedy is None else report.greedy.total / 1e6,
        "search": "" if report is None else f"{report.selector}, {report.method}",
    }


# ------------------------------------------------------------------------------- the whole table


def asked(case, checkout, kept=None):
    """Return the measurements of a new process that uses the sources of a checkout.

    ``kept`` is the folder of kept plans, None to compile.
    """
    paths = [str(p) for p in sorted(Path(checkout, "packages").glob("*/src"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ONEFLOW_EMULATE_GPUS": "4"}
    env["FLOW_PLAN_CACHE"] = "64MiB" if kept else "0"
    env |= {"XDG_CACHE_HOME": kept} if kept else {}
    command = [sys.executable, __file__, "--one", case]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def least(case, sources, rounds):
    """Return the minimum times of each (checkout, folder of plans) over interleaved rounds."""
    for checkout, kept in sources:
        if kept:
            asked(case, checkout, kept)  # keeps the plan
    found = [[asked(case, *source) for source in sources] for _ in range(rounds)]
    return [
        {**rows[-1], **{s: min(row[s] for row in rows) for s in STAGES}}
        for rows in zip(*found, strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["lenet:1", "resnet50:1", "resnet50:4"])
    parser.add_argument("--beside", help="second checkout, interleaved with this one")
    parser.add_argument("--kept", action="store_true", help="also start with kept plans")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one.split(":"))))
        return
    own = str(Path(__file__).parents[1])
    names, sources = ["beside"] * bool(options.beside), [(own, None)]
    sources += [(options.beside, None)] if options.beside else []
    with tempfile.TemporaryDirectory() as folder:
        if options.kept:
            names.append("kept")
            sources.append((own, folder))
        show(options, names, sources)


def show(options, names, sources):
    """Print a row per case and source."""
    print(f"{'case':>14} " + " ".join(f"{s:>9}" for s in STAGES) + "  cost (greedy's), us")
    for case in options.cases:
        for row, name in zip(least(case, sources, options.rounds), (case, *names), strict=True):
            cost = "" if row["cost"] is None else f"{row['cost']:.1f} ({row['greedy']:.1f})"
            seconds = " ".join(f"{row[s]:9.3f}" for s in STAGES)
            print(f"{name:>14} {seconds}  {cost}  {row['search']}", flush=True)


if __name__ == "__main__":
    main()
