"""A program on several processes, the last of which does something else: ``KIND``.

Prints ``done`` in every process that comes to its end.
"""

import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_dist.bootstrap.membership import Membership

STEPS = 12
AT = 5
"""The step in which the last process does something else."""

WIDE = 50_000
"""Columns of a fed array of which a step looks at some elements only."""

kind = sys.argv[1]
place = Membership.from_env()
odd = place.rank == place.size - 1

settings = flow.function_config()
if kind == "setting":
    settings.check_feeds("always" if odd else "never")


@flow.global_function(type="train", function_config=settings)
def train(
    x: tp.Numpy.Placeholder((8, 6)),
    y: tp.Numpy.Placeholder((8, 1)),
    wide: tp.Numpy.Placeholder((4, WIDE)),
) -> tp.Numpy:
    with flow.scope.placement("cpu", f"0:0-{place.size - 1}"):
        random = flow.random_normal_initializer()
        out = flow.layers.dense(x, 1, name="out", kernel_initializer=random)
        loss = flow.math.reduce_mean(flow.math.square(out - y)) + flow.math.reduce_mean(wide)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss


@flow.global_function(function_config=settings)
def evaluate(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
    with flow.scope.placement("cpu", "0:0"):
        return flow.math.reduce_sum(x)


@flow.global_function(function_config=settings)
def later(x: tp.Numpy.Placeholder((8, 6))) -> tp.Callback[tp.Numpy]:
    with flow.scope.placement("cpu", f"0:0-{place.size - 1}"):
        return flow.math.reduce_sum(x)


def batch(step: int) -> list[np.ndarray]:
    random = np.random.default_rng(step)
    x, y = (random.standard_normal((8, n)).astype(np.float32) for n in (6, 1))
    return [x, y, np.zeros((4, WIDE), np.float32)]


def one_step(step: int) -> None:
    here = odd and step == AT
    x, y, wide = batch(step + 100 * (odd and kind == "feeds"))
    if kind == "element" and odd:
        wide[3, 777] = 1.0
    if kind == "lone" and here:
        wide[3, 777] = 1.0
    if kind == "late" and here:
        x[0, 0] += 1
    if kind == "extra" and here:
        train(x, y, wide)
    if kind == "job" and here:
        evaluate(x)
    if kind == "order" and here:
        evaluate(x)
        train(x, y, wide)
        return
    if kind == "variable" and here:
        flow.get_all_variables()["out-bias"].numpy()
    if kind == "callback":
        later(x + here)(lambda value: None)
    if kind == "lines" and odd:
        train(x, y, wide)
    else:
        train(x, y, wide)
    evaluate(x)
    if kind == "variable":
        flow.get_all_variables()["out-weight"].numpy()


for step in range(STEPS):
    one_step(step)
sys.stderr.write("done\n")
