"""A job whose rows 6 and 7 are on another process than row 0; row 6 makes its logarithm NaN.

Prints the error, which all processes raise, and whether the variables are those before the step.
"""

import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import NonFiniteError

MICRO_BATCHES = int(sys.argv[1])
config = flow.function_config()
config.train.num_gradient_accumulation_steps(MICRO_BATCHES)


@flow.global_function(type="train", function_config=config)
def train(x: tp.Numpy.Placeholder((8 * MICRO_BATCHES, 2))) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0-3"):
        w = flow.get_variable("w", (2, 1), initializer=flow.ones_initializer())
        loss = flow.math.log(flow.matmul(x, w))
        flow.optimizer.SGD(0.01, momentum=0).minimize(loss)
    return loss


x = np.ones((8 * MICRO_BATCHES, 2), np.float32)
train(x)
before = flow.get_all_variables()["w"].numpy()
x[6] = -1
try:
    train(x)
except NonFiniteError as error:
    print(error.op, error.step, error.device, error)
    same = np.array_equal(flow.get_all_variables()["w"].numpy(), before)
    print("variables as before:", same)
x[6] = np.nan
try:
    train(x)
except NonFiniteError as error:
    print(error)
