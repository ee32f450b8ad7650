"""Train on four devices; write which jobs each rank compiled, and a digest of the losses.

The arguments are a folder, in which each rank has a file for its results and a folder for its
plans, and the numbers of the ranks that keep none.  With a third argument, rank 1 is killed after
its first step, unless it has been restarted.  With emulated GPUs, these are the devices, and the
network is one that their memory may not hold.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from flow_core.base.disk_cache import user_folder
from flow_dist.bootstrap.membership import Membership

base, without, *killed = sys.argv[1:]
here = Membership.from_env()
rank = here.rank
loops, own = user_folder("flow-onednn"), Path(base, str(rank))
if not own.exists():  # ranks have plans of their own, but compile no loops again
    loops.mkdir(mode=0o700, parents=True, exist_ok=True)
    own.mkdir()
    (own / loops.name).symlink_to(loops)
os.environ["XDG_CACHE_HOME"] = str(own)
os.environ["FLOW_PLAN_CACHE"] = "0" if str(rank) in without.split(",") else "64MiB"

import numpy as np  # noqa: E402  # the settings are read when flow is imported

import oneflow as flow  # noqa: E402
import oneflow.typing as tp  # noqa: E402
from flow_core.frontend.job import host_fallback  # noqa: E402

compile_plan, compiled = host_fallback.compile_plan, []


def recorded(request):
    """Compile a job, and record its name."""
    compiled.append(request.job)
    return compile_plan(request)


host_fallback.compile_plan = recorded


kind, width = ("gpu", 64) if "ONEFLOW_EMULATE_GPUS" in os.environ else ("cpu", 16)
config = flow.function_config()
config.share_replicas(False)


@flow.global_function("train", config)
def train(x: tp.Numpy.Placeholder((16, width))) -> tp.Numpy:
    """Return the loss of a step."""
    with flow.scope.placement(kind, "0:0-3"):
        weights = flow.random_normal_initializer(stddev=0.1)
        h = flow.layers.dense(x, width, flow.nn.relu, kernel_initializer=weights, name="hidden")
        loss = flow.math.reduce_mean(flow.nn.dropout(h, 0.5))
        flow.optimizer.Adam(0.01, do_bias_correction=True).minimize(loss)
        return loss


x = np.random.default_rng(0).standard_normal((16, width), np.float32)
if killed and (rank, here.restart) == (1, 0):
    train(x)
    os.kill(os.getpid(), signal.SIGKILL)
bits = hashlib.sha256(b"".join(train(x).tobytes() for _ in range(3))).hexdigest()[:16]
with open(os.path.join(base, f"{rank}.json"), "w") as file:
    json.dump([compiled, bits], file)
