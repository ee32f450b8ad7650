"""Split the layers of a network over four devices, and compare its plan with data parallelism.

Both jobs train the same network from the same weights. In one job, each device has all weights and
a part of the batch. In the other one, each device has a quarter of the weights of two wide layers:
the first is split by columns and the second by rows, as in Megatron-LM.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.observe.document import document
from flow_core.observe.measure import measure
from flow_core.observe.page import page

BATCH, INPUTS, WIDE, STEPS = 32, 128, 2048, 20
PICTURE, PAGE = "tensor_parallel.png", "tensor_parallel.html"
SPLIT = flow.distribute.split


def training(x, y, prefix, first, second):
    init = flow.zeros_initializer()  # main loads the weights
    with flow.scope.placement("cpu", "0:0-3"):
        up = flow.get_variable(f"{prefix}/up", (INPUTS, WIDE), initializer=init, distribute=first)
        down = flow.get_variable(
            f"{prefix}/down", (WIDE, INPUTS), initializer=init, distribute=second
        )
        hidden = flow.math.gelu(flow.matmul(x, up))
        loss = flow.math.reduce_mean(flow.math.square(flow.matmul(hidden, down) - y))
        flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
    return loss


ROWS = tp.Numpy.Placeholder((BATCH, INPUTS))


@flow.global_function(type="train")
def data_parallel(x: ROWS, y: ROWS) -> tp.Numpy:
    return training(x, y, "data", flow.distribute.broadcast(), flow.distribute.broadcast())


@flow.global_function(type="train")
def tensor_parallel(x: ROWS, y: ROWS) -> tp.Numpy:
    return training(x, y, "tensor", SPLIT(1), SPLIT(0))


def moved(job):
    """Return the bytes that a step moves between devices."""
    return sum(transfer.nbytes for transfer in job.plan().ledger)


def held(job):
    """Return the bytes of variables on the fullest device."""
    sizes = {}
    plan = job.plan()
    for index in plan.variables.values():
        buffer = plan.buffers[index]
        sizes[buffer.device] = sizes.get(buffer.device, 0) + buffer.type.nbytes
    return max(sizes.values())


def draw(jobs):
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(7, 2.2), layout="constrained")
    for part, title, size in zip(
        axes, ("moved per step", "variables per device"), (moved, held), strict=True
    ):
        part.barh(["data parallel", "tensor parallel"], [size(job) / 2**20 for job in jobs])
        part.set(title=title, xlabel="MiB")
    figure.savefig(PICTURE, dpi=80)


def main():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(BATCH, INPUTS)).astype(np.float32) for _ in range(2))
    jobs = (data_parallel, tensor_parallel)
    up = rng.normal(0, 0.05, (INPUTS, WIDE)).astype(np.float32)
    down = rng.normal(0, 0.05, (WIDE, INPUTS)).astype(np.float32)
    for prefix in ("data", "tensor"):
        flow.load_variables({f"{prefix}/up": up, f"{prefix}/down": down})
    losses = [[job(x, y).item() for _ in range(STEPS)] for job in jobs]
    draw(jobs)
    Path(PAGE).write_text(page(document(tensor_parallel), measure(tensor_parallel)))
    for job in jobs:
        print(
            f"{job.name}: {moved(job) / 2**20:.2f} MiB moved per step, "
            f"{held(job) / 2**20:.1f} MiB of variables per device"
        )
    same = np.allclose(*losses, rtol=1e-4)
    print(f"loss {losses[1][0]:.3f} to {losses[1][-1]:.3f}; the same in both jobs: {same}")
    print(f"the plan: {PAGE}")
    return 0 if same and moved(tensor_parallel) < moved(data_parallel) / 5 else 1


if __name__ == "__main__":
    sys.exit(main())
