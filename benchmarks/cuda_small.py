"""Small programs that are trained on GPU and CPU for comparison."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp


def programs(
    rate: float = 0.05, halves: bool = False
) -> dict[str, tuple[Callable[[str], Any], tuple[Any, ...]]]:
    """Return the programs, keyed by name, each with its feeds.

    Args:
        rate: the learning rate.
        halves: whether to compute in float16 where that is possible.
    """
    rng, batch = np.random.default_rng(0), 16
    labels = rng.integers(0, 5, batch).astype(np.int32)
    rows = rng.normal(size=(batch, 24)).astype(np.float32)
    images = rng.uniform(0, 1, (batch, 1, 12, 12)).astype(np.float32)
    return {
        "mlp": (functools.partial(job_on, mlp, rows, rate=rate, halves=halves), (rows, labels)),
        "lenet": (
            functools.partial(job_on, lenet, images, rate=rate, halves=halves),
            (images, labels),
        ),
        "table": (functools.partial(job_on, table, rows, rate=rate, halves=halves), (rows, labels)),
    }


def job_on(body: Callable[..., Any], example: Any, device: str, rate: float, halves: bool) -> Any:
    """Return a train job on a device."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(halves)

    @flow.global_function("train", config)
    def job(
        x: tp.Numpy.Placeholder(example.shape), y: tp.Numpy.Placeholder((len(example),), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            loss = flow.math.reduce_mean(body(x, y))
            schedule = flow.optimizer.CosineScheduler(rate, 50)
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


def mlp(x: Any, y: Any) -> Any:
    first = flow.random_uniform_initializer(-0.3, 0.3)
    x = flow.layers.dense(x, 32, flow.nn.relu, kernel_initializer=first, name="first")
    x = flow.nn.dropout(flow.layers.layer_norm(x, name="norm"), rate=0.3, name="drop")
    logits = flow.layers.dense(x, 5, kernel_initializer=first, name="last")
    return flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def lenet(x: Any, y: Any) -> Any:
    first = flow.random_uniform_initializer(-0.3, 0.3)
    conv = functools.partial(flow.layers.conv2d, kernel_initializer=first)
    x = conv(x, 4, 3, padding="SAME", activation=flow.nn.relu, name="c1")
    x = flow.nn.max_pool2d(x, 2, 2, "VALID", "NCHW")
    x = flow.layers.batch_normalization(conv(x, 6, 3, padding="VALID", name="c2"), axis=1, name="b")
    x = flow.reshape(flow.nn.avg_pool2d(flow.nn.relu(x), 2, 2, "VALID", "NCHW"), (x.shape[0], -1))
    logits = flow.layers.dense(x, 5, kernel_initializer=first, name="last")
    return flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def table(x: Any, y: Any) -> Any:
    rows = flow.get_variable("table", (9, 24), initializer=flow.random_uniform_initializer())
    return flow.math.square(flow.gather(rows, y) - x)


def dropout_on(example: Any, device: str) -> Any:
    """Return a train job that returns the output of dropout."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder(example.shape)) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            dropped = flow.nn.dropout(x, rate=0.4, name="drop")
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(schedule).minimize(flow.math.reduce_mean(dropped * w))
        return dropped

    return job
