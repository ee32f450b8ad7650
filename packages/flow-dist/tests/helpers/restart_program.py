"""A training program that can be restarted: prints a loss per step with all digits.

usage: restart_program.py FOLDER STEPS [FAULT STEP]

The fault strikes the last process when it comes to the step, the first time ("loop" strikes all).
The time is written to a file; a process that waits for that file injects faults from outside.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_dist.bootstrap.membership import Membership
from flow_dist.recovery.restart import Checkpoints

BATCH = 8


def await_checkpoint(folder: Path, step: int) -> None:
    """Waits until the first process has finished the checkpoint before a step."""
    while step and not (folder / f"step-{step:012d}").exists():
        time.sleep(0.01)


def damage(folder: Path) -> None:
    """Flips a bit in every part of the newest checkpoint and dies."""
    for data in max(folder.glob("step-*"), default=folder).glob("*.bin"):
        raw = bytearray(data.read_bytes())
        raw[len(raw) // 2] ^= 1
        data.write_bytes(raw)
    os.kill(os.getpid(), signal.SIGKILL)


def from_outside(folder: Path) -> None:
    """Waits until it has happened, as training would be over before."""
    while not (folder / "happened").exists():
        time.sleep(0.01)


def loop(folder: Path) -> None:
    """Computes something for ever, as every process does."""
    while True:
        time.sleep(0.01)


def nothing(folder: Path) -> None:
    """The step itself is another one."""


FAULTS = {
    "kill": lambda folder: os.kill(os.getpid(), signal.SIGKILL),
    "worker": lambda folder: os.kill(os.getppid(), signal.SIGKILL),
    "stop": lambda folder: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda folder: {}["nothing"],
    "damage": damage,
    "link": from_outside,
    "host": from_outside,
    "feeds": nothing,
    "extra": nothing,
    "loop": loop,
}


def main(folder: str, steps: int, fault: str = "", at: int = -1) -> None:
    devices = os.environ.get("DEVICES", "0:0")

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((BATCH, 6)), y: tp.Numpy.Placeholder((BATCH, 1))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            random = flow.xavier_uniform_initializer()
            hidden = flow.layers.dense(
                x, 16, activation=flow.nn.relu, name="one", kernel_initializer=random
            )
            hidden = flow.nn.dropout(hidden, rate=0.3)
            out = flow.layers.dense(hidden, 1, name="two", kernel_initializer=random)
            loss = flow.math.reduce_mean(flow.math.square(out - y))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    checkpoints = Checkpoints(folder, every=2)
    first = checkpoints.restore()
    place = Membership.from_env()
    again = place.restart > 0 or (Path(folder) / "struck").exists()
    struck = again or place.rank < place.size - 1
    for step in range(first, steps):
        strikes = step == at and not struck
        if strikes:
            await_checkpoint(Path(folder), at - at % 2)
            (Path(folder) / "struck").write_text(str(time.time()))
        if strikes or (fault == "loop" and step == at and place.restart == 0):
            FAULTS[fault](Path(folder))
        random = np.random.default_rng(step + 1000 * (strikes and fault == "feeds"))
        x, y = (random.standard_normal((BATCH, n)).astype(np.float32) for n in (6, 1))
        if strikes and fault == "extra":
            train(x, y)
        loss = train(x, y)
        sys.stdout.write(f"{step} {float(loss[0]).hex()}\n")
        sys.stdout.flush()
        checkpoints.after(step)
    checkpoints.close()
    flow.checkpoint.save(os.path.join(folder, "final"), overwrite=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(sys.argv[3:4]), *map(int, sys.argv[4:5]))
