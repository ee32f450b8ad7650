"""Kill a training run, and resume it at its last checkpoint as if nothing had happened.

The program starts itself three times: a run without interruption, a run that is killed by SIGKILL,
and one that resumes. The losses after the kill equal those of the uninterrupted run, bit for bit:
a checkpoint has the optimizer's state and the step counter, and batches depend on the step only.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np

import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, EVERY, KILLED = 200, 64, 40, 110
PICTURE = "resume.png"


@flow.global_function(type="train")
def train(
    points: tp.Numpy.Placeholder((BATCH, 2)), labels: tp.Numpy.Placeholder((BATCH,), flow.int32)
) -> tp.Numpy:
    init = flow.glorot_uniform_initializer()
    x = flow.layers.dense(points, 32, flow.nn.relu, kernel_initializer=init, name="hidden")
    x = flow.layers.dense(x, 2, kernel_initializer=init, name="output")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
    schedule = flow.optimizer.CosineScheduler(0.1, steps=STEPS)
    flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return flow.math.reduce_mean(loss)


def batch(step):
    """Return points, and whether each of them is on the inner of two spirals."""
    rng = np.random.default_rng(step)
    labels = rng.integers(0, 2, BATCH).astype(np.int32)
    angle = rng.uniform(0, 2 * np.pi, BATCH)
    radius = angle / 6 + 0.5 * labels + rng.normal(0, 0.05, BATCH)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), labels


def run(folder, killed_at):
    """Train from the last checkpoint, and append each step and its loss to a file."""
    checkpoint = Path(folder, "checkpoint")
    if checkpoint.exists():
        flow.train.CheckPoint().load(str(checkpoint))
    with Path(folder, "losses").open("a") as losses:
        for step in range(train.step, STEPS):
            if step == killed_at:
                signal.raise_signal(signal.SIGKILL)
            print(step, train(*batch(step)).item().hex(), file=losses, flush=True)
            if (step + 1) % EVERY == 0:
                flow.checkpoint.save(str(checkpoint), overwrite=True)


def start(folder, killed_at=-1):
    """Run the program in a process of its own; return its steps and losses, and its exit status."""
    file = Path(folder, "losses")
    seen = len(file.read_text().splitlines()) if file.exists() else 0
    command = [sys.executable, __file__, str(folder), str(killed_at)]
    status = subprocess.run(command, check=False).returncode
    rows = [line.split() for line in file.read_text().splitlines()[seen:]]
    return {int(step): float.fromhex(loss) for step, loss in rows}, status


def draw(runs):
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    styles = {"without interruption": ("0.75", 4), "killed": ("C3", 1.5), "resumed": ("C0", 1.5)}
    for name, losses in runs.items():
        color, width = styles[name]
        axes.plot(list(losses), list(losses.values()), color=color, linewidth=width, label=name)
    axes.set(xlabel="step", ylabel="cross entropy")
    axes.legend()
    figure.savefig(PICTURE, dpi=80)


def main():
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        complete, _ = start(whole)
        killed, status = start(broken, KILLED)
        resumed, _ = start(broken)
    draw({"without interruption": complete, "killed": killed, "resumed": resumed})
    equal = all(complete[step] == loss for step, loss in {**killed, **resumed}.items())
    print(f"killed by signal {-status} before step {KILLED}, resumed at step {min(resumed)}")
    print(f"final loss {resumed[STEPS - 1]:.4f}; all losses equal: {equal}")
    return 0 if equal and status == -signal.SIGKILL and len(resumed) == STEPS - 80 else 1


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
