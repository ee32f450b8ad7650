"""Processes: collectives beside the same call of mpi4py, and training beside one process.

    mpiexec -n 2 python benchmarks/dist_bench.py collectives
    python benchmarks/dist_bench.py lenet

Ratios are of minima over interleaved rounds.  The second starts `mpiexec` itself, from beside the
interpreter: data-parallel LeNet on two processes with a thread each, beside one process with two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {4: 300, 4096: 200, 1 << 20: 10, 64 << 20: 1}
"""Bytes that a device holds of the whole, and launches per round."""

ROUNDS = 7
BATCH = 128


def collectives() -> None:
    from mpi4py import MPI

    from flow_dist.world import world

    comm, joined = MPI.COMM_WORLD, world()
    for nbytes, launches in SIZES.items():
        for name, (ours, theirs) in cases(comm, nbytes):
            best = [float("inf")] * 2
            for _ in range(ROUNDS):
                for which, call in enumerate((ours, theirs)):
                    joined.gather(b"", "a round")
                    best[which] = min(best[which], seconds(call, launches))
            a, b = best
            line = f"{name:15}{nbytes:10} bytes{a * 1e6:12.1f} us{b * 1e6:12.1f} us of MPI"
            print(f"{comm.size} processes  {line}  ratio {a / b:5.2f}", flush=True)


def seconds(call: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def cases(comm: Any, nbytes: int) -> Iterator[tuple[str, tuple[Callable[[], None], Any]]]:
    """The same collective of ours and of MPI's."""
    from flow_core.testing import comms

    count, p = nbytes // 4, comm.size
    whole, out = np.ones(count, np.float32), np.empty(count, np.float32)
    yield "all_reduce", (bound(comms.all_reduce((count,))), lambda: comm.Allreduce(whole, out))
    yield "broadcast", (bound(comms.broadcast(0, (count,))), lambda: comm.Bcast(out, 0))
    part = count // p
    if not part:
        return
    mine, full = np.ones(part, np.float32), np.ones(part * p, np.float32)
    even, each = [part] * p, part // p
    yield "all_gather", (bound(comms.all_gather(even)), lambda: comm.Allgather(mine, full))
    scattered = bound(comms.reduce_scatter(even))
    yield "reduce_scatter", (scattered, lambda: comm.Reduce_scatter_block(full, mine))
    row, column = full[: each * p], np.empty(each * p, np.float32)
    exchanged = bound(comms.all_to_all(lambda s, t: each))
    yield "all_to_all", (exchanged, lambda: comm.Alltoall(row, column))


def bound(draft: Any) -> Callable[[], None]:
    """An exchange between the devices of all processes, in memory as that of a plan."""
    from flow_core.dtypes import float32
    from flow_dist.mpi import MpiComm
    from flow_dist.world import world

    devices = tuple(f"cpu:0:{i}" for i in range(world().size))
    comm, exchange = MpiComm(devices), draft(devices, float32)

    def array(device: str, type_: Any) -> Any:
        if device not in comm.local:
            return None
        arena = comm.arena(device, max(type_.nbytes, 64))
        found = arena.view(0, type_.shape, np.float32)
        found[...] = 1
        return found

    ends = (exchange.senders, exchange.inputs), (exchange.receivers, exchange.outputs)
    inputs, outputs = ([array(*end) for end in zip(*side, strict=True)] for side in ends)
    launches = comm.bind(exchange, inputs, outputs)

    def call() -> None:
        for launch in launches:
            launch()

    call()
    return call


# --------------------------------------------------------------------------------------- LeNet


def lenet() -> None:
    """Rounds of either, one after the other."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    here = [sys.executable, __file__, "train"]
    one: list[float] = []
    two: list[float] = []
    for _ in range(3):
        one.append(trained([*here, "0:0"], threads=2))
        two.append(trained([str(mpiexec), "-n", "2", *here, "0:0-1"], threads=1))
    a, b = min(one), min(two)
    print(f"LeNet, batch {BATCH}: one process with two threads {a * 1e3:.2f} ms a step")
    print(f"two processes with a thread each {b * 1e3:.2f} ms a step, ratio {b / a:.2f}")


def trained(command: list[str], threads: int) -> float:
    """The seconds per step that a run says."""
    count = str(threads)
    settings = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "FLOW_STREAM_THREADS": "1"}
    done = subprocess.run(
        command, env={**os.environ, **settings}, check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def train(devices: str) -> None:
    """Trains on some devices and prints the time of a step."""
    import oneflow as flow
    import oneflow.typing as tp

    init = flow.random_normal_initializer(stddev=0.1)

    @flow.global_function(type="train")
    def job(
        images: tp.Numpy.Placeholder((BATCH, 1, 28, 28)),
        labels: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            x = images
            for number, channels in enumerate((32, 64)):
                name = f"conv{number}"
                x = flow.layers.conv2d(
                    x, channels, 5, padding="SAME", kernel_initializer=init, name=name,
                    activation=flow.nn.relu,
                )  # fmt: skip
                x = flow.nn.max_pool2d(x, 2, 2, "SAME", data_format="NCHW")
            x = flow.reshape(x, (BATCH, -1))
            x = flow.layers.dense(x, 512, flow.nn.relu, kernel_initializer=init, name="dense")
            x = flow.layers.dense(x, 10, kernel_initializer=init, name="out")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(flow.math.reduce_mean(loss))
        return loss

    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, 1, 28, 28)).astype(np.float32)
    labels = rng.integers(0, 10, BATCH).astype(np.int32)
    for _ in range(3):
        job(images, labels)
    print(min(seconds(lambda: job(images, labels), 1) for _ in range(12)))


if __name__ == "__main__":
    {"collectives": collectives, "lenet": lenet, "train": lambda: train(sys.argv[2])}[sys.argv[1]]()
