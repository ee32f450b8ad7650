"""Train a small convolutional network on real handwritten digits and plot its loss.

The 1,797 images of 8 x 8 pixels ship with scikit-learn, so nothing is downloaded.
"""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import oneflow as flow
import oneflow.typing as tp

EPOCHS = 12
BATCH = 32
TESTED = 360
STEPS = (1797 - TESTED) // BATCH  # per epoch
PICTURE = "digits_loss.png"


def network(images: flow.Blob, train: bool = False) -> flow.BlobDef:
    initializer = flow.variance_scaling_initializer(2.0, "fan_in", "truncated_normal")
    x = images
    for name, filters in (("conv1", 16), ("conv2", 32)):
        x = flow.layers.conv2d(
            x,
            filters,
            3,
            padding="SAME",
            activation=flow.nn.relu,
            kernel_initializer=initializer,
            name=name,
        )
        x = flow.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID", name=f"{name}_pool")
    x = flow.reshape(x, [x.shape[0], -1])
    x = flow.layers.dense(
        x, 64, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden"
    )
    if train:
        x = flow.nn.dropout(x, rate=0.3, name="dropout")
    return flow.layers.dense(x, 10, kernel_initializer=initializer, name="output")


@flow.global_function(type="train")
def train_job(
    images: Annotated[tp.Numpy, tp.shape(BATCH, 1, 8, 8), flow.float32],
    labels: Annotated[tp.Numpy, tp.shape(BATCH), flow.int32],
) -> tp.Numpy:
    logits = network(images, train=True)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="loss")
    schedule = flow.optimizer.CosineScheduler(0.05, steps=EPOCHS * STEPS)
    flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return loss


@flow.global_function(type="predict")
def predict_job(images: Annotated[tp.Numpy, tp.shape(TESTED, 1, 8, 8), flow.float32]) -> tp.Numpy:
    return network(images)


def load_data() -> tuple[tp.Numpy, ...]:
    digits: Any = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, np.newaxis]
    labels = digits.target.astype(np.int32)
    split: Any = train_test_split(images, labels, test_size=TESTED, random_state=1, stratify=labels)
    return tuple(split)


def batches(images: tp.Numpy, labels: tp.Numpy) -> Iterator[tuple[tp.Numpy, tp.Numpy]]:
    """Yield the batches of all epochs; the order of the images differs in each epoch."""
    rng = np.random.default_rng(1)
    for _ in range(EPOCHS):
        for batch in rng.permutation(len(images))[: STEPS * BATCH].reshape(STEPS, BATCH):
            yield images[batch], labels[batch]


def progress() -> Progress:
    """Return a progress bar that appears on terminals only; standard output is for results."""
    console = Console(stderr=True)
    columns = [
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    ]
    return Progress(*columns, console=console, disable=not console.is_terminal)


def train(images: tp.Numpy, labels: tp.Numpy) -> list[float]:
    """Return the mean loss of every step."""
    losses: list[float] = []
    with progress() as bar:
        task = bar.add_task("", total=EPOCHS * STEPS, loss=float("nan"))
        for batch in batches(images, labels):
            losses.append(float(train_job(*batch).mean()))
            bar.update(task, advance=1, loss=losses[-1])
    return losses


def draw(losses: list[float]) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    epochs = np.reshape(losses, (EPOCHS, STEPS)).mean(axis=1)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.semilogy(losses, color="0.75", linewidth=0.5, label="each step")
    axes.semilogy((np.arange(EPOCHS) + 0.5) * STEPS, epochs, marker="o", label="mean of an epoch")
    axes.set(xlabel="step", ylabel="cross entropy", title="Training on handwritten digits")
    axes.legend()
    figure.savefig(PICTURE, dpi=90)


def main() -> int:
    images, test_images, labels, test_labels = load_data()
    losses = train(images, labels)
    draw(losses)
    right = np.argmax(predict_job(test_images), axis=1) == test_labels
    print(f"{len(images)} digits, {EPOCHS} epochs, {len(losses)} steps")
    print(f"loss: {np.mean(losses[-STEPS:]):.4f}")
    print(f"accuracy on {TESTED} other digits: {100 * right.mean():.1f} %")
    print(f"loss curve: {PICTURE}")
    return 0 if right.mean() > 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
