"""Correct programs: type checkers report nothing, and know the types of results."""

from collections.abc import Callable
from typing import Annotated, Any, assert_type

import numpy as np
from numpy.typing import NDArray

import oneflow as flow
import oneflow.typing as tp

BATCH = 4
Array = NDArray[Any]
Rows = Annotated[tp.Numpy, tp.shape(BATCH, 3), flow.float32]
Labels = Annotated[tp.Numpy, tp.shape(BATCH), flow.int32]


def layer(
    x: flow.Blob, units: int, activation: Callable[[flow.Blob], flow.BlobDef]
) -> flow.BlobDef:
    weight = flow.get_variable(
        "weight", (x.shape[-1], units), initializer=flow.glorot_uniform_initializer()
    )
    return activation(flow.matmul(x, weight))


def operators(x: flow.BlobDef, y: flow.BlobDef) -> flow.BlobDef:
    assert_type(x + y, flow.BlobDef)
    assert_type(2 * x - 1, flow.BlobDef)
    assert_type(1.0 - x, flow.BlobDef)
    assert_type(1 / x, flow.BlobDef)
    assert_type(-x, flow.BlobDef)
    assert_type(x @ y, flow.BlobDef)
    assert_type(x**2, flow.BlobDef)
    assert_type(x // 2 % 3, flow.BlobDef)
    assert_type(x < y, flow.BlobDef)
    assert_type(x >= 0, flow.BlobDef)
    assert_type(x.shape, tuple[int, ...])
    return x.with_distribute(flow.distribute.split(0))


@flow.global_function(type="train")
def train(x: Rows, labels: Labels) -> tp.Numpy:
    logits = layer(0.5 * x + 1, 10, flow.nn.relu)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="loss")
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
    return loss


@flow.global_function
def without_arguments(x: Rows) -> tp.Numpy:
    return x


@flow.global_function(function_config=flow.FunctionConfig())
def pair(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
    y = flow.math.sigmoid(x)
    return y, 2 * y


@flow.global_function("predict")
def lists(x: Rows) -> tp.ListNumpy:
    return flow.nn.softmax(x)


@flow.global_function()
def named(x: Rows) -> tp.Dict[str, tp.Tuple[tp.Numpy, tp.ListNumpy]]:
    y = flow.nn.softmax(x)
    return {"probabilities": (y, y)}


@flow.global_function()
def bundle(x: Rows) -> tp.Bundle[tp.Numpy]:
    return {"x": flow.identity(x), "several": [flow.identity(x)]}


@flow.global_function()
def later(x: Rows) -> tp.Callback[tp.Numpy]:
    return flow.math.reduce_mean(x)


@flow.global_function()
def later_pair(x: Rows) -> tp.Callback[tuple[tp.Numpy, tp.Numpy]]:
    return flow.math.reduce_mean(x), flow.math.reduce_max(x)


@flow.global_function()
def nothing(x: Rows) -> None:
    flow.watch(flow.identity(x), show)


@flow.global_function()
def of_lists(x: Annotated[Any, tp.ListNumpy, tp.shape(BATCH, 3)]) -> tp.ListNumpy:
    return flow.identity(x)


def show(x: tp.Numpy) -> None:
    print(x.mean())


def show_pair(results: tuple[tp.Numpy, tp.Numpy]) -> None:
    print(results[0].mean(), results[1].max())


rows = np.ones((BATCH, 3), np.float32)
loss = train(rows, labels=np.zeros(BATCH, np.int32))
assert_type(loss, Array)
print(float(loss.mean()), np.argmax(loss), loss + 1)
assert_type(without_arguments(rows), Array)
first, second = pair(rows)
assert_type(second, Array)
assert_type(lists(rows), list[Array])
assert_type(named(rows), dict[str, tuple[Array, list[Array]]])
assert_type(nothing(rows), None)
assert_type(of_lists([rows])[0], Array)
later(rows)(show)
later(rows)(lambda mean: print(mean.shape))
later_pair(rows)(show_pair)
print(bundle(rows))
print(train.name, train.line)

variables = flow.get_all_variables()
print(variables["weight"].numpy().mean())
flow.load_variables({"weight": np.ones((3, 10), np.float32)})
flow.config.enable_debug_mode(True)
with flow.scope.placement("cpu", "0:0"):
    flow.clear_default_session()
