"""Trains a small transformer on four devices, in one process or in several.

Prints the bits of the losses and a digest of the weights: the same for any number of processes.
The variable CORES stands for a machine with so many cores, WIDTH for the size of a hidden state.
"""

import hashlib
import os
from typing import Any

import numpy as np

if "CORES" in os.environ:
    os.sched_getaffinity = lambda _: set(range(int(os.environ["CORES"])))

import oneflow as flow
import oneflow.typing as tp

BATCH, TIME, WORDS, HEADS, LAYERS, STEPS = 8, 32, 1000, 4, 2, 5
WIDTH = int(os.environ.get("WIDTH", "64"))
DRAW = flow.random_normal_initializer(stddev=0.05)


def dense(x: Any, size: int, name: str) -> Any:
    weight = flow.get_variable(f"{name}.w", (x.shape[-1], size), initializer=DRAW)
    bias = flow.get_variable(f"{name}.b", (size,), initializer=flow.zeros_initializer())
    return flow.nn.bias_add(flow.matmul(x, weight), bias)


def heads(x: Any) -> Any:
    apart = flow.reshape(x, (BATCH, TIME, HEADS, WIDTH // HEADS))
    return flow.transpose(apart, (0, 2, 1, 3))


def attention(x: Any, name: str) -> Any:
    query, key, value = (heads(dense(x, WIDTH, f"{name}.{k}")) for k in "qkv")
    scale = (WIDTH // HEADS) ** -0.5
    scores = flow.nn.softmax(flow.matmul(query, key, transpose_b=True, alpha=scale))
    seen = flow.transpose(flow.matmul(scores, value), (0, 2, 1, 3))
    return dense(flow.reshape(seen, (BATCH * TIME, WIDTH)), WIDTH, f"{name}.o")


def norm(x: Any, name: str) -> Any:
    return flow.layers.layer_norm(x, begin_norm_axis=1, begin_params_axis=1, name=name)


@flow.global_function(type="train")
def train(
    words: tp.Numpy.Placeholder((BATCH, TIME), dtype=flow.int32),  # type: ignore[valid-type]
    labels: tp.Numpy.Placeholder((BATCH * TIME,), dtype=flow.int32),  # type: ignore[valid-type]
) -> tp.Numpy:
    with flow.scope.placement("cpu", "0:0-3"):
        table = flow.get_variable("table", (WORDS, WIDTH), initializer=DRAW)
        x = flow.reshape(flow.gather(table, words), (BATCH * TIME, WIDTH))
        for i in range(LAYERS):
            x = norm(x + attention(x, f"attention{i}"), f"first{i}")
            hidden = flow.math.gelu(dense(x, 4 * WIDTH, f"up{i}"))
            x = norm(x + dense(hidden, WIDTH, f"down{i}"), f"second{i}")
        logits = dense(x, WORDS, "out")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = flow.math.reduce_mean(loss)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1e-3])
        flow.optimizer.Adam(rate).minimize(loss)
    return loss


def main() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, WORDS, (BATCH, TIME)).astype(np.int32)
    labels = rng.integers(0, WORDS, BATCH * TIME).astype(np.int32)
    losses = [float(np.mean(train(words, labels))).hex() for _ in range(STEPS)]
    digest = hashlib.sha256()
    for name, variable in sorted(flow.get_all_variables().items()):
        digest.update(name.encode() + np.ascontiguousarray(variable.numpy()).tobytes())
    cores = train.plan().cores
    print(*losses, digest.hexdigest(), f"threads {cores.kernels} {cores.products}")


main()
