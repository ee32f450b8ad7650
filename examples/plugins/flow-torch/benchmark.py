"""Compare a train job of LeNet on the device type torch with the same program in plain torch.

The steps of the two programs alternate, on two threads; the script prints the medians of their
times.  Usage: ``python benchmark.py [STEPS]``.
"""

import os
import statistics
import sys
import time

os.environ["OMP_NUM_THREADS"] = "2"

import numpy as np
import torch
from torch.nn import functional

import oneflow as flow
import oneflow.typing as tp

BATCH, RATE, DEVIATION = 100, 0.01, 0.03
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(BATCH, 1, 28, 28)).astype(np.float32)
LABELS = RNG.integers(0, 10, BATCH).astype(np.int32)


@flow.global_function(type="train")
def train(
    images: tp.Numpy.Placeholder(IMAGES.shape),
    labels: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32),
) -> tp.Numpy:
    init = flow.random_normal_initializer(stddev=DEVIATION)
    with flow.scope.placement("torch", "0:0"):
        x = images
        for name, filters in (("conv1", 32), ("conv2", 64)):
            x = flow.layers.conv2d(
                x, filters, 5, padding="SAME", activation=flow.nn.relu,
                kernel_initializer=init, name=name,
            )  # fmt: skip
            x = flow.nn.max_pool2d(x, 2, 2, "SAME")
        x = flow.reshape(x, (BATCH, -1))
        x = flow.layers.dense(x, 512, flow.nn.relu, kernel_initializer=init, name="fc1")
        x = flow.layers.dense(x, 10, kernel_initializer=init, name="fc2")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [RATE])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss


class Eager:
    """The same network and updates in plain torch."""

    def __init__(self):
        shapes = (
            (32, 1, 5, 5),
            (32,),
            (64, 32, 5, 5),
            (64,),
            (512, 3136),
            (512,),
            (10, 512),
            (10,),
        )
        self.weights = [(torch.randn(*s) * DEVIATION).requires_grad_() for s in shapes]
        self.optimizer = torch.optim.SGD(self.weights, lr=RATE)
        self.images, self.labels = torch.from_numpy(IMAGES), torch.from_numpy(LABELS).long()

    def step(self):
        """Run one step; return the losses."""
        self.optimizer.zero_grad()
        w, x = self.weights, self.images
        for i in (0, 2):
            x = functional.relu(functional.conv2d(x, w[i], w[i + 1], padding=2))
            x = functional.max_pool2d(x, 2)
        x = functional.relu(functional.linear(x.flatten(1), w[4], w[5]))
        x = functional.linear(x, w[6], w[7])
        loss = functional.cross_entropy(x, self.labels, reduction="none")
        loss.sum().backward()
        self.optimizer.step()
        return loss.detach().numpy()


def seconds(step):
    """Return the duration of a call."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main(steps):
    """Print the medians and their ratio."""
    torch.set_num_threads(2)
    eager = Eager()
    pairs = [
        (seconds(eager.step), seconds(lambda: train(IMAGES, LABELS))) for _ in range(steps + 5)
    ]
    plain, ours = (statistics.median(times) for times in zip(*pairs[5:], strict=True))
    ratio = statistics.median(b / a for a, b in pairs[5:])
    print(f"torch eager {plain * 1e3:.1f} ms, device torch {ours * 1e3:.1f} ms")
    print(f"ratio of medians {ours / plain:.3f}, median of ratios {ratio:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 40)
