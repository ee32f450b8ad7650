"""Train with feeds of a process's own part, in one of three ways; print the losses to stderr."""

import sys
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_dist.bootstrap.membership import Membership

BATCH, WIDTH = 16, 6


def main(how: str) -> None:
    here = Membership.from_env()
    result = tp.Callback[tp.Numpy] if how == "async" else tp.Numpy

    @flow.global_function(type="train")
    def train(
        x: tp.Numpy.Placeholder((BATCH, WIDTH)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> result:
        with flow.scope.placement("cpu", "0:0-3"):
            logits = flow.layers.dense(x, 4, name="dense")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate).minimize(loss)
        return loss

    with flow.scope.placement("cpu", "0:0-3"):
        own = flow.distribute.local_rows(BATCH)
    for step in range(12):
        random = np.random.default_rng(step)
        batch = (
            random.normal(size=(BATCH, WIDTH)).astype(np.float32),
            random.integers(0, 4, BATCH).astype(np.int32),
        )
        found = train(*(feed(how, array, own, here) for array in batch))
        if how == "async":
            found(report)
        else:
            report(found)
    flow.sync_default_session()


def feed(how: str, array: Any, own: Any, here: Membership) -> Any:
    """The feed of a whole array, of which other processes' rows are not read."""
    if how == "whole":
        return array
    if how == "function":
        foreign = [n for n in range(BATCH) if not any(n in part for part in own)]
        array[foreign] = 1000 + here.rank
        return flow.distribute.rows_from(lambda first, stop: array[first:stop])
    if how == "missing" and here.rank == 1:
        own = own[1:]
    rows = np.concatenate([array[part.start : part.stop] for part in own])
    return flow.distribute.rows(rows, own)


def report(loss: Any) -> None:
    sys.stderr.write(f"loss {loss.tobytes().hex()}\n")


if __name__ == "__main__":
    main(sys.argv[1])
