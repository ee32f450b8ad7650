"""Wrong programs: type checkers report an error in each line that is marked, and in no other.

Lines marked with ``# wrong: pyright`` are reported by pyright alone.
"""

from typing import Annotated

import numpy as np

import oneflow as flow
import oneflow.typing as tp

Rows = Annotated[tp.Numpy, tp.shape(4, 3), flow.float32]
rows = np.ones((4, 3), np.float32)
flags = np.zeros(4, np.int32)


@flow.global_function(type="train")
def train(x: Rows, labels: Annotated[tp.Numpy, tp.shape(4), flow.int32]) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(rate).minimize(loss)
    return loss


@flow.global_function()
def pair(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
    return flow.math.exp(x), flow.math.log(x)


@flow.global_function()
def named(x: Rows) -> dict[str, tp.Numpy]:
    return {"y": flow.math.exp(x)}


@flow.global_function()
def lists(x: Rows) -> tp.ListNumpy:
    return flow.math.exp(x)


@flow.global_function()
def nothing(x: Rows) -> None:
    flow.watch(flow.identity(x))


@flow.global_function()
def later(x: Rows) -> tp.Callback[tp.Numpy]:
    return flow.math.exp(x)


@flow.global_function()
def later_pair(x: Rows) -> tp.Callback[tuple[tp.Numpy, tp.Numpy]]:
    return flow.math.exp(x), flow.math.log(x)


def take_number(number: int) -> None:
    print(number)


def take_nothing() -> None: ...


# Decorators


@flow.global_function(type="tarin")  # wrong
def misspelt(x: Rows) -> tp.Numpy:
    return x


@flow.global_function(kind="train")  # wrong
def unknown_argument(x: Rows) -> tp.Numpy:
    return x


@flow.global_function(type=1)  # wrong
def number(x: Rows) -> tp.Numpy:
    return x


@flow.global_function(function_config={})  # wrong
def settings(x: Rows) -> tp.Numpy:
    return x


@flow.global_functoin()  # wrong
def misspelt_decorator(x: Rows) -> tp.Numpy:
    return x


# Calls

train(rows)  # wrong
train()  # wrong
train(rows, flags, rows)  # wrong
train(rows, label=flags)  # wrong
train(rows, labels=3)  # wrong
train("rows", flags)  # wrong
train(None, flags)  # wrong
train(4.0, flags)  # wrong
train([rows], flags)  # wrong
train({"x": rows}, flags)  # wrong
train(x=rows)  # wrong
train(rows, x=rows, labels=flags)  # wrong
pair()  # wrong

# Results

text: str = train(rows, flags)  # wrong
whole: int = train(rows, flags)  # wrong
real: float = train(rows, flags)  # wrong
train(rows, flags).typo()  # wrong
train(rows, flags).mean(axes=0)  # wrong
one, two, three = pair(rows)  # wrong
pair(rows).mean()  # wrong
pair(rows)[2]  # wrong
named(rows)[0]  # wrong
named(rows).mean()  # wrong
named(rows)["y"].typo()  # wrong
lists(rows).mean()  # wrong
lists(rows)[0].typo()  # wrong
nothing(rows).mean()  # wrong
for_nothing: tp.Numpy = nothing(rows)  # wrong
later(rows).mean()  # wrong
later(rows)()  # wrong
later(rows)(3)  # wrong
later(rows)(take_number)  # wrong
later(rows)(take_nothing)  # wrong
later(rows)(lambda a, b: None)  # wrong
later_pair(rows)(take_number)  # wrong
later_pair(rows)(lambda both: both.mean())  # wrong
train.plann()  # wrong
train.name = 3  # wrong


# Bodies


@flow.global_function()
def body(x: Rows) -> tp.Numpy:
    y = flow.identity(x)
    flow.nn.relu("x")  # wrong
    flow.nn.relu(3)  # wrong
    flow.nn.relu(None)  # wrong
    flow.nn.relu([y])  # wrong
    flow.nn.relu()  # wrong
    flow.nn.relu(y, nam="y")  # wrong
    flow.nn.relu(y, name=3)  # wrong
    flow.nn.relo(y)  # wrong
    flow.nn.softmax(y, axis="last")  # wrong
    flow.matmul(y)  # wrong
    flow.matmul(y, 3)  # wrong
    flow.reshape(y, "4, 3")  # wrong
    flow.concat(3, axis=0)  # wrong
    flow.transpose(y, perm=0)  # wrong
    flow.cast(y, dtype=3)  # wrong
    flow.constant("one", flow.float32, (1,))  # wrong
    flow.get_variable("w", shape="3")  # wrong
    flow.get_variable(3, shape=(3,))  # wrong
    flow.layers.dense(y, units="10")  # wrong
    flow.layers.conv2d(y, 32, 5, padding="SAME", stride=2)  # wrong
    flow.layers.dense(y, 10, activation="relu")  # wrong
    flow.math.reduce_mean(y, axis="rows")  # wrong
    flow.optimizer.SGD(learning_rate=0.1)  # wrong
    flow.optimizer.SDG()  # wrong
    flow.watch("y")  # wrong
    y + "a"  # wrong
    y * None  # wrong
    y - [1]  # wrong
    y @ 3  # wrong
    -y + "a"  # wrong
    print(y.batch_axes)  # wrong
    y.sum()  # wrong
    y.astype(flow.int32)  # wrong
    y.reshape(3, 4)  # wrong
    y.shape = (3, 4)  # wrong
    x.with_distribution(3)  # wrong
    return y


@flow.global_function()
def returns_text(x: Rows) -> tp.Numpy:
    return "x"  # wrong


@flow.global_function()
def returns_one(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
    return (flow.identity(x),)  # wrong


@flow.global_function()
def returns_nothing(x: Rows) -> tp.Numpy:  # wrong
    flow.identity(x)


@flow.global_function()
def returns_wrong_keys(x: Rows) -> dict[str, tp.Numpy]:
    return {0: flow.identity(x)}  # wrong


# Sessions

flow.global_fuction()  # wrong
print(flow.nn.no_such_layer)  # wrong
flow.load_variables([rows])  # wrong
flow.load_variables({"w": rows}, ignore="all")  # wrong
flow.checkpoint.save(3)  # wrong
flow.config.gpu_device_num("all")  # wrong
flow.scope.placement(0)  # wrong
flow.get_all_variables()[0]  # wrong
print(flow.get_all_variables()["w"].typo)  # wrong
tp.shape("3")  # wrong
tp.shape((4, 3))  # wrong
tp.shape(4, batch_axes=0)  # wrong
print(tp.Nunpy)  # wrong
