"""Exponential moving averages of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flow_core.api.arguments import check, check_numbers
from flow_core.api.array.assignment import assign
from flow_core.api.array.initializers import zeros_initializer
from flow_core.api.math.binary import cast
from flow_core.api.math.comparison import maximum
from flow_core.api.math.unary import reciprocal
from flow_core.base.dtypes import DType, float32
from flow_core.frontend.config.scope import current_scope, enter
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import JobBuild, current_job

__all__ = ["average_weights"]

COUNT = "average_weights-steps"
"""The variable that counts the steps of all averages of a session."""


def average_weights(decay: float = 0.999, variables: Sequence[str] | None = None) -> list[str]:
    """Keep an average of weights that follows them slowly, for evaluation.

    At the start of each step, ``average += (1 - decay) * (weight - average)``.  Until step n has a
    larger share, 1 / n, that share is taken: the first averages are plain means.  The average of
    "w" is the variable "w-average".  Call this function once in a train job, after its layers.

    Args:
        decay: the share of the average that a step keeps, at least 0 and below 1.
        variables: full names of the variables; None for all trainable variables of the job so far.

    Returns: The names of the averages.

    Raises: InferenceError: ``decay`` is out of range, or the job has no variable of a name.

    >>> @flow.global_function(type="train")
    ... def job() -> tp.Numpy:
    ...     w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
    ...     flow.optimizer.average_weights(0.5)
    ...     flow.optimizer.SGD(0.1, momentum=0).minimize(w * w)
    ...     return w
    >>> [round(job().item(), 4) for _ in range(3)]
    [1.0, 0.8, 0.64]
    >>> average = flow.get_all_variables()["w-average"].numpy()
    >>> average.round(4)
    array([0.77], dtype=float32)
    >>> flow.load_variables({"w": average})
    """
    job = current_job("average_weights")
    check_numbers("average_weights", decay=decay)
    check(0 <= decay < 1, "average_weights", f"decay={decay}", "0 <= decay < 1")
    names = _trainable(job) if variables is None else list(variables)
    unknown = [name for name in names if name not in job.variables]
    found = f"variables {unknown}" if names else "no variable"
    check(names and not unknown, "average_weights", found, f"names of {sorted(job.variables)}")
    with enter(replace(current_scope(), names=(), mirrored=False, checkpointing=0, stale=0)):
        steps = _zeros(COUNT, (1,), float32)
        share = maximum(reciprocal(steps + 1.0), 1.0 - decay)
        assign(steps, steps + 1.0)
        for name in names:
            _average(job, name, share)
    return [f"{name}-average" for name in names]


def _trainable(job: JobBuild) -> list[str]:
    return [name for name, v in job.variables.items() if job.builder.ops[v.op].attrs["trainable"]]


def _zeros(name: str, shape: Sequence[int], dtype: DType) -> BlobDef:
    return get_variable(name, shape, dtype, zeros_initializer(), trainable=False, reuse=False)


def _average(job: JobBuild, name: str, share: BlobDef) -> None:
    """Add the ops that move the average of a variable towards it."""
    value = job.variables[name]
    weight, devices = BlobDef(job, value), job.builder.ops[value.op].placement
    kind = weight.dtype.accumulate
    with enter(replace(current_scope(), placement=devices)):
        average = _zeros(f"{name}-average", weight.shape, kind)
        change = (cast(weight, kind) - average) * cast(share, kind)
        assign(average, average + change)
