"""A job on four devices whose measured times are drawn: those of one rank are 10 % longer.

Arguments: the slow rank (-1 for none), and "data" or "stages".  Prints the step after which ranks
were compared, and the slow ranks.
"""

import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.runtime.stragglers import ComparedExecutable

SLOW, FORM = int(sys.argv[1]), sys.argv[2]
NOISE = 0.1
"""The relative standard deviation of a measured time."""


def task_seconds(self: ComparedExecutable, position: int, seconds: float) -> float:
    rank = self._world.rank
    rng = np.random.default_rng((rank, position, self._count))
    task = self.plan.tasks[position]
    kernel = 1 + len(task.type) % 4  # how far the prediction is off
    return task.seconds * kernel * rng.lognormal(0, NOISE) * (1.1 if rank == SLOW else 1)


ComparedExecutable.task_seconds = task_seconds
config = flow.function_config()
if FORM == "stages":
    config.train.num_gradient_accumulation_steps(2)


@flow.global_function(type="train", function_config=config)
def train(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
    for i in range(8):
        with flow.scope.placement("gpu", f"0:{i // 2}" if FORM == "stages" else "0:0-3"):
            init = flow.random_normal_initializer(stddev=0.1)
            x = flow.layers.dense(x, 8, flow.math.tanh, kernel_initializer=init, name=f"layer{i}")
    with flow.scope.placement("gpu", "0:3" if FORM == "stages" else "0:0-3"):
        loss = flow.math.reduce_mean(x)
        flow.optimizer.SGD(0.01, momentum=0.9).minimize(loss)
    return loss


x = np.ones((16, 8), np.float32)
for step in range(50):
    train(x)
    found = train.executable().comparison
    if found is not None:
        print(step, [rank.rank for rank in found.slow])
        break
