"""Measure the CPU time and memory of compiling for 1 to many devices, without any device.

    python scaling_bench.py mlp gpt resnet50 pipeline --devices 1,4,8,16,32
    python scaling_bench.py gpt --devices 8 --layers 12,24,48 --profile 40
    python scaling_bench.py mlp --devices 8,64 --beside ../../before       # and a second checkout
    python scaling_bench.py gpt mlp --devices 8,1024 --bind           # one of as many processes

The devices are null devices, which run nothing; 8 of them form a machine.  The batch grows with the
number of devices.  Each case runs in a new process.  With ``--bind``, the devices are CPUs with a
process each: one process compiles its part and binds it over flow-dist's MPI transport, on a host
of its own, where sending and receiving are replaced.  ``pipeline`` is the GPT in 4 stages with 8
micro-batches; each stage has a quarter of the devices.  The script prints the least CPU seconds,
the added bytes and the peak of the process, the ratios of seconds and peak to the first number of
devices (or of layers), and the exponents of seconds and added bytes since the previous one.
"""

import argparse
import cProfile
import itertools
import json
import os
import pstats
import resource
import subprocess
import sys
import time
from collections import defaultdict
from math import log
from pathlib import Path

MACHINE = 8
STAGES, MICRO_BATCHES = 4, 8
LENGTH, HIDDEN, WORDS = 64, 256, 1024

os.environ.setdefault("FLOW_PLAN_CACHE", "0")  # compilation is measured


# -------------------------------------------------------------------------- in a separate process


def ids(first, count):
    """Return the text form of consecutive devices, by machine."""
    found = {}
    for i in range(first, first + count):
        found.setdefault(i // MACHINE, []).append(i % MACHINE)
    return [f"{machine}:{all_[0]}-{all_[-1]}" for machine, all_ in found.items()]


def gpt(x, y, layers, place):
    """Build a decoder; ``place(i)`` is the scope of stage ``i`` of `STAGES`."""
    import networks
    from compile_bench import block

    import oneflow as flow

    batch, length = x.shape
    with place(0):
        h = flow.gather(networks.variable("tok", (WORDS, HIDDEN)), x)
        h = flow.reshape(h + networks.variable("pos", (length, HIDDEN)), (batch * length, HIDDEN))
    for i in range(layers):
        with place(i * STAGES // layers):
            mask = networks.variable(f"mask{i}", (1, 1, length, length), trainable=False)
            h = block(f"{i}.", h, mask, HIDDEN, (batch, length, HIDDEN))
    with place(STAGES - 1):
        logits = networks.dense("head", networks.layer_norm("ln", h), HIDDEN, WORDS)
        return networks.cross_entropy(flow.reshape(y, (-1,)), logits)


def job_of(workload, devices, layers, kind_of_device="null"):
    """Return a training job."""
    import networks

    import oneflow as flow
    import oneflow.typing as tp

    flow.config.machine_num(max(1, -(-devices // MACHINE)))
    each = 2 * (MICRO_BATCHES if workload == "pipeline" else 1)
    rows = each * (devices // STAGES if workload == "pipeline" else devices)
    shapes = {"mlp": (rows, 784), "resnet50": (rows, 3, 64, 64)}
    images = workload in shapes
    kind = flow.float if images else flow.int32
    shape = shapes.get(workload, (rows, LENGTH))

    def place(stage):
        if workload != "pipeline":
            return flow.scope.placement(kind_of_device, ids(0, devices))
        size = devices // STAGES
        return flow.scope.placement(kind_of_device, ids(stage * size, size))

    def network(
        x: tp.Numpy.Placeholder(shape, dtype=kind),
        y: tp.Numpy.Placeholder((rows,) if images else shape, dtype=flow.int32),
    ) -> tp.Numpy:
        if images:
            with place(0):
                loss = getattr(networks, workload)(x, y)
        else:
            loss = gpt(x, y, layers, place)
        with place(STAGES - 1):
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    config = flow.function_config()
    config.sbp_selector("greedy")
    if workload == "pipeline":
        config.train.num_gradient_accumulation_steps(MICRO_BATCHES)
    return flow.global_function(type="train", function_config=config)(network)


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def join(devices):
    """Make this process the last of a program that has one process per device."""
    from types import SimpleNamespace

    from flow_core.plugins import host
    from flow_core.plugins.specs import Available, CommSpec
    from flow_dist.mpi.comm import MpiComm
    from flow_dist.mpi.point_to_point import Transport
    from flow_dist.mpi.world import MpiWorld

    class Alone(MpiWorld):
        def __init__(self):
            self.rank, self.size, self.machines = devices - 1, devices, 1
            self._tags, self._owned = defaultdict(itertools.count), {}
            request = SimpleNamespace(Free=lambda: None)
            made = SimpleNamespace(Send_init=lambda *_: request, Recv_init=lambda *_: request)
            self.transport = Transport(made, self.rank, self.owner, self._tag)
            self.shared_memory_peers = [frozenset({rank}) for rank in range(devices)]
            self.cores = None

        def gather(self, text, what):
            return (text,) * devices

        def communicator(self, ranks, stream):
            done = SimpleNamespace(Test=lambda: True)
            names = "Iallgather", "Ialltoallv", "Iallgatherv"
            return SimpleNamespace(**{name: lambda *_: done for name in names})

        def agree(self, job, arrays, policy):
            return None

        def broadcast(self, array, root, what):
            array[...] = 0

    world = Alone()
    spec = CommSpec(
        "alone",
        ("cpu",),
        lambda: Available(devices),
        lambda found: MpiComm(found, world),
        priority=100,
        world=lambda: world,
        binds_parts=True,
    )

    class Plugin:
        FLOW_PLUGIN_API = "1.0"

        def flow_register_comms(self):
            return [spec]

    host._default.registry = host.load_plugins(extra=[Plugin()])


def measure(workload, devices, layers, lines, classes, bind):
    """Return the CPU seconds and added bytes of compilation, and the plan's numbers."""
    if bind:
        join(devices)
    job = job_of(workload, devices, layers, "cpu" if bind else "null")
    job._variant()
    profile = cProfile.Profile()
    before, begun = resident(), time.process_time()
    if lines:
        profile.enable()
    if bind:
        job.executable()
    compiled = job.compile_classes() if classes else job.compile()  # known, if it is bound
    profile.disable()
    seconds, after = time.process_time() - begun, resident()
    if lines:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(lines)
    plan = compiled.plan
    assert plan.classes or not bind
    return {
        "seconds": seconds, "bytes": after - before, "peak": after, "tasks": len(plan.tasks),
        "sent": plan.bytes_per_step, "arenas": len({a.nbytes for a in plan.arenas}),
    }  # fmt: skip


# ------------------------------------------------------------------------------- the whole table


def asked(case, checkout, options):
    """Return the measurements of a new process that uses the sources of a checkout."""
    paths = [str(p) for p in sorted(Path(checkout, "packages").glob("*/src"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        __file__,
        "--one",
        json.dumps([*case, options.profile, options.classes, options.bind]),
    ]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def exponent(a, b, at, key):
    """Return the exponent of a quantity between two cases of other sizes."""
    return log(max(b[key], 1e-9) / max(a[key], 1e-9)) / log(at[1] / at[0])


def table(workload, cases, size_of, checkout, options):
    """Print a row for each case, with the exponents since the previous case."""
    last = first = None
    for case in cases:
        rows = [asked(case, checkout, options) for _ in range(options.rounds)]
        row = {**rows[-1], "seconds": min(r["seconds"] for r in rows)}
        line = f"{workload:>9} {case[1]:6} devices {case[2]:3} layers {row['seconds']:8.2f} s "
        line += f"{row['bytes'] / 1e6:8.1f} MB of {row['peak'] / 1e6:6.1f} {row['tasks']:8,} tasks "
        line += f"{row['sent']:16,} bytes sent"
        first = first or row
        if last:
            line += (
                f"  x {row['seconds'] / first['seconds']:5.2f} {row['peak'] / first['peak']:5.2f}"
            )
            at = size_of(last[0]), size_of(case)
            line += f"  exponents {exponent(last[1], row, at, 'seconds'):5.2f}"
            line += f" {exponent(last[1], row, at, 'bytes'):5.2f}"
        print(line, flush=True)
        last = case, row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["mlp", "gpt", "resnet50", "pipeline"])
    parser.add_argument("--devices", default="1,4,8,16")
    parser.add_argument("--layers", default="12")
    parser.add_argument("--classes", action="store_true", help="compile one device of each class")
    parser.add_argument("--bind", action="store_true", help="also bind, as one of many processes")
    parser.add_argument("--beside", help="second checkout, measured after this one")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", type=int, default=0, help="number of functions to print")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    devices, layers = ([int(n) for n in x.split(",")] for x in (options.devices, options.layers))
    for checkout in filter(None, (str(Path(__file__).parents[1]), options.beside)):
        print(checkout)
        for name in options.workloads:
            counts = [n for n in devices if name != "pipeline" or n % STAGES == 0]
            if options.bind:  # a process of its own has all devices, and no classes
                counts = [n for n in counts if n > 1]
            if len(layers) > 1:
                cases = [(name, devices[0], n) for n in layers]
                table(name, cases, lambda c: c[2], checkout, options)
            else:
                cases = [(name, n, layers[0]) for n in counts]
                table(name, cases, lambda c: c[1], checkout, options)


if __name__ == "__main__":
    main()
