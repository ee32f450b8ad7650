"""Train a network in two pipeline stages with micro-batches, and draw what each device does when.

The first half of the layers runs on device 0, the second half on device 1. The batch is cut into
four micro-batches, so that both devices compute at the same time. The gradients are those of the
whole batch: the losses equal those of one device up to rounding.
"""

import sys

import matplotlib as mpl
import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.observe.measure import measure

BATCH, INPUTS, WIDE, LAYERS, STEPS, MICRO = 256, 256, 512, 4, 30, 4
PICTURE = "pipeline.png"
ROWS, LABELS = tp.Numpy.Placeholder((BATCH, INPUTS)), tp.Numpy.Placeholder((BATCH,), flow.int32)


def training(x, y, prefix, devices):
    init = flow.zeros_initializer()  # main loads the weights
    for number, device in enumerate(devices):
        with flow.scope.placement("cpu", device):
            w = flow.get_variable(f"{prefix}/{number}", (x.shape[1], WIDE), initializer=init)
            x = flow.nn.relu(flow.matmul(x, w))
    with flow.scope.placement("cpu", devices[-1]):
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        flow.optimizer.SGD(0.05, momentum=0.9).minimize(loss)
    return loss


settings = flow.function_config()
settings.train.num_gradient_accumulation_steps(MICRO)


@flow.global_function(type="train", function_config=settings)
def pipeline(x: ROWS, y: LABELS) -> tp.Numpy:
    return training(x, y, "pipeline", ["0:0", "0:0", "0:1", "0:1"])


@flow.global_function(type="train")
def single(x: ROWS, y: LABELS) -> tp.Numpy:
    return training(x, y, "single", ["0:0"] * LAYERS)


def draw(job):
    """Draw the tasks of a measured step: forward ops, backward ops, and the rest."""
    mpl.use("Agg")
    from matplotlib import pyplot

    tasks = job.plan().tasks
    figure, axes = pyplot.subplots(figsize=(8, 2), layout="constrained")
    for span in measure(job).spans:
        task = tasks[span.task]
        color = "C1" if "/grad/" in task.op else "C2" if "optimizer" in task.op else "C0"
        width = (span.stop - span.start) * 1e3
        axes.barh(str(task.device), width, left=span.start * 1e3, color=color, edgecolor="none")
    axes.set(
        xlabel="milliseconds", title="a step: forward (blue), backward (orange), updates (green)"
    )
    figure.savefig(PICTURE, dpi=80)


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, INPUTS)).astype(np.float32)
    y = np.argmax(x[:, :10], axis=1).astype(np.int32)
    for number in range(LAYERS):
        width = INPUTS if number == 0 else WIDE
        w = rng.normal(0, np.sqrt(2 / width), (width, WIDE)).astype(np.float32)
        flow.load_variables({f"pipeline/{number}": w, f"single/{number}": w})
    losses = [[job(x, y).mean() for _ in range(STEPS)] for job in (pipeline, single)]
    draw(pipeline)
    difference = np.abs(np.subtract(*losses)).max()
    transfers = [t for t in pipeline.plan().ledger if t.nbytes]
    print(f"{MICRO} micro-batches; {len(transfers)} kinds of transfers between the stages per step")
    print(f"loss {losses[0][0]:.3f} to {losses[0][-1]:.3f}")
    print(f"largest difference from one device: {difference:.1e}")
    return 0 if difference < 1e-3 and losses[0][-1] < losses[0][0] / 2 else 1


if __name__ == "__main__":
    sys.exit(main())
