"""Trains a perceptron of large weights on the devices of one machine; prints losses and form.

``run_in_stages.py DEVICES [STAGES]``: without a number of stages, the form is searched for if the
devices have too little memory.
"""

import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp

config = flow.function_config()
config.share_replicas(False)
if len(sys.argv) > 2:
    config.pipeline_stages(int(sys.argv[2]))
    config.train.num_gradient_accumulation_steps(2)
INIT = flow.random_normal_initializer(stddev=0.1)
ROWS, WIDTH = 8, 32


@flow.global_function(type="train", function_config=config)
def train(
    x: tp.Numpy.Placeholder((ROWS, WIDTH)), y: tp.Numpy.Placeholder((ROWS,), flow.int32)
) -> tp.Numpy:
    with flow.scope.placement("gpu", sys.argv[1]):
        for i in range(4):
            weight = flow.get_variable(f"w{i}", (WIDTH, WIDTH), initializer=INIT)
            x = flow.math.tanh(flow.matmul(x, weight))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        flow.optimizer.Adam(1e-2, do_bias_correction=True).minimize(loss)
    return loss


x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
losses = [train(x, np.arange(ROWS, dtype=np.int32)) for _ in range(3)]
searched = train.compile().searched
print([round(float(loss.sum()), 4) for loss in losses])
print("as it is" if searched is None else searched.form)
