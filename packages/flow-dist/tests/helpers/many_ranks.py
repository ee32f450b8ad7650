"""Train a network on many devices.

Rank 0 prints the losses, a digest of the weights, and the forms of all-reduces that MPI has run.

usage: many_ranks.py DEVICES
"""

import hashlib
import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_dist.mpi import comm
from flow_dist.phases import is_small

bind_collectively, forms = comm.bind_collectively, set()


def recorded(exchange, *arguments):
    """Bind an all-reduce, and record its form."""
    forms.add("whole" if is_small(exchange) else "in chunks")
    return bind_collectively(exchange, *arguments)


comm.bind_collectively = recorded
devices = int(sys.argv[1])
batch = 2 * devices
config = flow.function_config()
config.enable_all_reduce_group(False)  # all-reduces of several sizes


@flow.global_function("train", config)
def train(x: tp.Numpy.Placeholder((batch, 6)), y: tp.Numpy.Placeholder((batch, 1))) -> tp.Numpy:
    """Return the loss of a step."""
    with flow.scope.placement("cpu", f"0:0-{devices - 1}"):
        weights = flow.random_normal_initializer(stddev=0.5)
        h = flow.layers.dense(x, 32, flow.nn.relu, kernel_initializer=weights, name="hidden")
        out = flow.layers.dense(h, 1, kernel_initializer=weights, name="out")
        loss = flow.math.reduce_mean(flow.math.square(out - y))
        flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
    return loss


for step in range(4):
    random = np.random.default_rng(step)
    x, y = (random.standard_normal((batch, n)).astype(np.float32) for n in (6, 1))
    sys.stdout.write(f"{step} {float(train(x, y)[0]).hex()}\n")
variables = flow.get_all_variables()
weights = b"".join(variables[name].numpy().tobytes() for name in sorted(variables))
sys.stdout.write(f"{hashlib.sha256(weights).hexdigest()}\n")
sys.stdout.write(f"collectives: {', '.join(sorted(forms)) or 'none'}\n")
