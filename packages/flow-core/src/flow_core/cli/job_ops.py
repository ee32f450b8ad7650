"""The ops of the smallest useful jobs, found by compiling such jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flow_core.api.array import initializers
from flow_core.api.math import reduce, unary
from flow_core.api.nn import layers, losses
from flow_core.api.optim import learning_rates, optimizer
from flow_core.api.session.job import FixedTensorDef
from flow_core.base.dtypes import int32
from flow_core.comm.exchange import BOXING
from flow_core.compiler.lower.inputs import LEAVES
from flow_core.frontend.job.function import AnyJob, JobFunction
from flow_core.frontend.session.session import Session
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import Kind
from flow_core.plugins.registry import Registry

ROWS = FixedTensorDef((4, 6))
LABELS = FixedTensorDef((4,), int32)


def _network(x: BlobDef) -> BlobDef:
    """Apply two dense layers."""
    draw = initializers.random_normal_initializer(stddev=0.1)
    hidden = layers.dense(x, 8, unary.relu, kernel_initializer=draw, name="first")
    return layers.dense(hidden, 5, kernel_initializer=draw, name="last")


def _predict(x=ROWS):  # type: ignore[no-untyped-def]  # an annotation would declare the array
    return _network(x)


def _train(x=ROWS, y=LABELS):  # type: ignore[no-untyped-def]
    loss = losses.sparse_softmax_cross_entropy_with_logits(y, _network(x))
    loss = reduce.reduce_mean(loss)
    rate = learning_rates.PiecewiseConstantScheduler([], [0.1])
    optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss


JOBS: tuple[tuple[Kind, Callable[..., object]], ...] = (("predict", _predict), ("train", _train))
"""A classifier with two dense layers: prediction, and training with SGD."""


def needed_ops(registry: Registry) -> dict[str, str]:
    """Return the ops whose kernels the jobs need, each with the first job that needs it.

    Optional ops, which passes create to combine several other ops, are omitted.
    """
    found: dict[str, str] = {}
    session = Session(registry)
    try:
        for kind, function in JOBS:
            for type_ in _types(JobFunction(function, kind, session=session), registry):
                found.setdefault(type_, kind)
    finally:
        session.close()
    return found


def _types(job: AnyJob, registry: Registry) -> Iterator[str]:
    """Yield the types of the ops that run kernels in a job."""
    for op in job.compile().physical.graph.ops.values():
        leaf = op.type in LEAVES or op.type == BOXING
        if not leaf and not registry.ops[op.type].is_view(len(op.inputs)):
            yield op.type
