"""Jobs that share variables on other devices, in a process or in several that compile their own.

Prints the bits of the results, which are the same for any number of processes.
"""

import hashlib
import tempfile

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session.session import default_session
from flow_core.sharding.topology import Device

ROWS = 13  # not a multiple of the number of devices


def hidden(x):
    """Return a dense layer, whose weight every device has."""
    start = flow.random_normal_initializer(stddev=0.3)
    return flow.math.relu(flow.matmul(x, flow.get_variable("whole", (8, 12), initializer=start)))


@flow.global_function()
def of_one(x: tp.Numpy.Placeholder((ROWS, 8))) -> tp.Numpy:
    """Compute the first layer on one device."""
    with flow.scope.placement("cpu", "0:3"):
        return hidden(x)


@flow.global_function()
def of_two(x: tp.Numpy.Placeholder((ROWS, 8))) -> tp.Numpy:
    """Compute the first layer on two of the devices."""
    with flow.scope.placement("cpu", "0:1-2"):
        return hidden(x)


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((ROWS, 8))) -> tp.Numpy:
    """Return the outputs before a step."""
    with flow.scope.placement("cpu", "0:0-3"):
        start = flow.random_normal_initializer(stddev=0.3)
        split = flow.get_variable(
            "split", (12, 6), initializer=start, distribute=flow.distribute.split(1)
        )
        y = flow.matmul(flow.nn.dropout(hidden(x), 0.2), split)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        flow.optimizer.SGD(rate, momentum=0.9).minimize(flow.math.reduce_mean(y))
        return y


def check_plans():
    """Check that several processes compile their own devices, and one process all of them."""
    world = default_session().world
    for job, count in ((train, 4), (of_two, 2)):
        plan = job.plan()
        kept = {arena.device for arena in plan.arenas}
        if world is None:
            assert (len(kept), plan.classes) == (count, {}), job.name
            continue
        own = {device for device in kept if world.owner(device) == world.rank}
        assert kept == own | set(map(Device.parse, plan.classes)), (job.name, kept)
        assert sum(plan.classes.values()) == count, job.name


def main():
    """Run the jobs in turn, with variables that are read, assigned, saved and loaded between."""
    x = np.random.default_rng(0).standard_normal((ROWS, 8), np.float32)
    found = [flow.get_all_variables()["split"].numpy()]  # before any job has parts
    found += [job(x) for job in (of_one, train, of_two, train, of_one)]
    variables = {name: array.numpy() for name, array in flow.get_all_variables().items()}
    found += [variables[name] for name in sorted(variables)]
    flow.load_variables({"whole": variables["whole"] * 2, "split": variables["split"] + 1})
    found += [job(x) for job in (train, of_two, of_one)]
    with tempfile.TemporaryDirectory() as folder:
        flow.checkpoint.save(folder + "/model")
        found.append(train(x))
        flow.load_variables(flow.checkpoint.get(folder + "/model"))
        found.append(train(x))
    check_plans()
    for array in found:
        print(array.shape, hashlib.sha256(np.ascontiguousarray(array)).hexdigest()[:16])


main()
