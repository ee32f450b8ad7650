"""Jobs on CPUs and on devices whose memory the host can only copy; prints digests of the results.

CPUs read the batch and compute one op in the middle; layers on the devices are split by samples or
by features, and their gradients are summed between all processes.
"""

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from opaque_devices import opaque_registry

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session import session as sessions

sessions._default[:] = [sessions.Session(opaque_registry())]


def layer(x, units, name):
    init = flow.random_normal_initializer(stddev=0.5)
    return flow.layers.dense(x, units, flow.math.tanh, kernel_initializer=init, name=name)


def on(type_):
    return flow.scope.placement(type_, "0:0-3")


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((12, 6))) -> tp.Numpy:
    with on("cpu"):
        x = flow.identity(x)
    with on("opaque"):
        x = layer(x, 8, "first")
    with on("cpu"):
        x = flow.math.sigmoid(x)
    with on("opaque"):
        x = layer(x.with_distribute(flow.distribute.broadcast()), 4, "second")
        loss = flow.math.reduce_mean(x * x)
        flow.optimizer.Adam(0.1).minimize(loss)
    return loss


@flow.global_function()
def predict(x: tp.Numpy.Placeholder((12, 6))) -> tp.Numpy:
    with on("opaque"):
        x = layer(x, 8, "first")
    with flow.scope.placement("cpu", "0:1"):
        return flow.math.reduce_sum(x, axis=1)


rng = np.random.default_rng(0)
losses = [train(rng.standard_normal((12, 6), np.float32)) for _ in range(5)]
results = predict(rng.standard_normal((12, 6), np.float32))
print(losses[0].item() > losses[-1].item(), "staged" in train.executable().comm.name)
for found in (np.array(losses), results):
    print(hashlib.sha256(found.tobytes()).hexdigest())
