"""Trains a perceptron on four devices in the cheapest form that fits; prints losses and form.

``run_within_memory.py [micro_batches]``: the argument is the value of the setting `memory_search`.
"""

import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp

config = flow.function_config()
config.sbp_selector("greedy")
config.memory_search(sys.argv[1] if len(sys.argv) > 1 else "on")
config.share_replicas(False)
INIT = flow.random_normal_initializer(stddev=0.1)
ROWS, WIDTH = 64, 64


@flow.global_function(type="train", function_config=config)
def train(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0-3"):
        for i in range(6):
            x = flow.layers.dense(x, WIDTH, flow.math.tanh, kernel_initializer=INIT, name=f"l{i}")
        loss = flow.math.reduce_mean(flow.math.square(x), axis=1)
        flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
    return loss


feed = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
losses = [train(feed) for _ in range(3)]
searched = train.compile().searched
print([float(loss.sum()) for loss in losses])
print("as it is" if searched is None else searched.form)
