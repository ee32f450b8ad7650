"""Save or restore a variable that is split over all ranks; print the bytes that each rank reads."""

import os
import sys
from io import FileIO

import oneflow as flow
import oneflow.typing as tp
from flow_dist.bootstrap.membership import Membership
from flow_dist.recovery import restart_files
from flow_dist.recovery.restart import Checkpoints

ROWS, COLUMNS = 4096, 2048

taken = 0
read_into = restart_files.read_into


def counted(file: FileIO, target: memoryview) -> int:
    """Count the bytes of `read_into`."""
    global taken
    found = read_into(file, target)
    taken += found
    return found


restart_files.read_into = counted


def main(action: str, folder: str, axis: int) -> None:
    here = Membership.from_env()

    def weight() -> object:
        return flow.get_variable(
            "w",
            (ROWS, COLUMNS),
            initializer=flow.random_uniform_initializer(),
            distribute=flow.distribute.split(axis),
        )

    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        with flow.scope.placement("cpu", f"0:0-{here.size - 1}"):
            loss = flow.math.reduce_sum(flow.math.square(weight()))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate).minimize(loss)
        return loss

    checkpoints = Checkpoints(folder)
    if action == "save":
        train()
        checkpoints.save(1)
    else:
        assert checkpoints.restore() == 1
        sys.stderr.write(f"checked {taken}\n")
    loss = train()[0]
    checkpoints.close()
    sys.stderr.write(f"read {taken}\nloss {float(loss).hex()}\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
