"""Print the resident memory of a process that trains jobs at many sizes: ``NETWORK COUNT KEPT``.

``KEPT`` replaces the bound on descriptions of oneDNN's primitives.  The sizes follow one another in
a scattered order, so that the plans of the 16 last ones have about the same arenas at all times.
"""

import ctypes
import gc
import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_onednn import recipes

DRAW = flow.truncated_normal_initializer(stddev=0.1)


def train(loss):
    flow.optimizer.SGD(0.01, momentum=0).minimize(loss)
    return loss


@flow.global_function(type="train")
def mlp(x: tp.Numpy.Placeholder((None, 64))) -> tp.Numpy:
    h = flow.layers.dense(x, 64, flow.nn.relu, kernel_initializer=DRAW, name="a")
    return train(flow.layers.dense(h, 1, kernel_initializer=DRAW, name="b"))


@flow.global_function(type="train")
def convolution(x: tp.Numpy.Placeholder((None, 12, 12, 1))) -> tp.Numpy:
    relu, nhwc = flow.nn.relu, "NHWC"
    h = flow.layers.conv2d(
        x, 8, 3, padding="SAME", data_format=nhwc, activation=relu, kernel_initializer=DRAW
    )
    h = flow.reshape(flow.nn.max_pool2d(h, 2, 2, "VALID", nhwc), (-1, 288))
    h = flow.layers.dense(h, 64, relu, kernel_initializer=DRAW, name="a")
    return train(flow.layers.dense(h, 1, kernel_initializer=DRAW, name="b"))


@flow.global_function(type="train")
def attention(x: tp.Numpy.Placeholder((None, 8, 16))) -> tp.Numpy:
    h = flow.layers.multi_head_attention(x, 2, name="attention")
    return train(flow.layers.dense(h, 1, kernel_initializer=DRAW, name="b"))


SHAPES = {
    "mlp": (mlp, lambda n: (n, 64)),
    "convolution": (convolution, lambda n: (n, 12, 12, 1)),
    "attention": (attention, lambda n: (n, 8, 16)),
}


def resident() -> int:
    """Return the bytes of this process in memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096


def main(network: str, count: int, kept: int) -> None:
    recipes.KEPT = kept
    job, shape = SHAPES[network]
    step = next(s for s in range(int(0.382 * count), count) if np.gcd(s, count) == 1)
    for visited in range(1, count + 1):
        job(np.ones(shape(1 + visited * step % count), np.float32))
        if visited % (count // 8) == 0:
            print(resident(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
