"""Names that experimental and older OneFlow programs use; they work as OneFlow documents them.

Args:
    op_name: the name of the variable.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.api.array.assignment import assign
from flow_core.base.arrays import Array
from flow_core.base.errors import (
    ConfigError,
    InferenceError,
    JobError,
    VariableError,
    nearest,
    user_line,
)
from flow_core.frontend.session.session import default_session
from flow_core.frontend.session.variables import stale_value
from flow_core.frontend.trace.blob import Blob, BlobDef, MirroredBlob, checked_blob
from flow_core.frontend.trace.division import mirrored_devices
from flow_core.frontend.trace.job_build import current_job
from flow_core.frontend.trace.mirrored_view import parts_of, to_mirrored, whole_of
from flow_core.sharding.sbp import B, P

__all__ = [
    "eager_assign_121", "eager_nccl_all_reduce", "get_interface_blob_value",
    "inter_job_reuse_mem_strategy", "set_interface_blob_value", "ssp_variable_proxy",
]  # fmt: skip

STRATEGIES = ("reuse_mem_priority", "mem_sharing_priority", "parallelism_priority",
              "custom_parallelism")  # fmt: skip


def inter_job_reuse_mem_strategy(
    strategy_str: str, job_set: object = None, **kwargs: object
) -> None:
    """Validate and store a strategy for sharing memory between jobs.  The strategy has no effect:
    each job has its own memory, assigned at compile time.

    Args:
        strategy_str: "reuse_mem_priority", "parallelism_priority" or "custom_parallelism".
        job_set: has no effect.
        kwargs: ``job_name_groups`` for "custom_parallelism": lists of job names.

    Raises:
        ConfigError: the strategy is unknown, or "custom_parallelism" comes without
            ``job_name_groups``.

    >>> flow.inter_job_reuse_mem_strategy("mem_sharing_priority")
    """
    groups = kwargs.get("job_name_groups")
    custom = strategy_str == "custom_parallelism"
    if strategy_str not in STRATEGIES or (custom and groups is None):
        raise ConfigError.at_caller(
            "flow.inter_job_reuse_mem_strategy",
            found=f"{strategy_str!r}" + (" without job_name_groups" if custom else ""),
            allowed=", ".join(STRATEGIES),
        )
    default_session().resources.others["inter_job_reuse_mem_strategy"] = strategy_str


def eager_assign_121(ref: Blob, value: Blob) -> BlobDef:
    """Assign like `flow.assign` in a job in eager mode, and return ``ref``.

    Args:
        ref: a variable.
        value: a blob of its shape and type.

    Returns: The variable.
    """
    ref = checked_blob(ref)
    if not default_session().eager:
        raise JobError.at_caller(
            "flow.experimental.eager_assign_121",
            found="a session without eager execution",
            allowed="a preceding flow.enable_eager_execution()",
            hint="use flow.assign(ref, value), which works in both modes",
        )
    assign(ref, value)
    return ref


def eager_nccl_all_reduce(x: Blob, parallel_conf: str, name: str | None = None) -> BlobDef:
    """Sum the values that a blob has on the devices of the mirrored view, by an all-reduce.

    Args:
        parallel_conf: the devices, in OneFlow's form; ignored, since in valid OneFlow programs they
            are those of the placement in scope.
    """
    x = checked_blob(x)
    job, line = current_job("eager_nccl_all_reduce"), user_line(2)
    devices = mirrored_devices(job)
    if devices is None:
        return x
    parts = to_mirrored(job, x, devices, "eager_nccl_all_reduce", line).parts
    total = whole_of(job, parts, P, devices, line, job.free_name(name or "eager_nccl_all_reduce"))
    return MirroredBlob(
        job,
        parts_of(job, total, (B,), devices, line),
        devices,
        differs=False,
        is_dynamic=x.is_dynamic,
    )


def ssp_variable_proxy(
    var: Blob, buffer_size: int = 1, name: str | None = None
) -> tuple[BlobDef, BlobDef]:
    """Return a variable to overwrite, and the value that it had ``buffer_size - 1`` steps before.

    In the first ``buffer_size`` steps, the stale value is the initial value.  Up to ``buffer_size``
    steps may be in flight, since no step waits for the update of the previous one.  Use the results
    instead of the variable.

    Args:
        var: a variable, as returned by `flow.get_variable`.
        buffer_size: number of stored values, at least 1.
        name: has no effect.

    Returns: The variable, for `flow.assign`, and the stale value.

    Raises: InferenceError: ``buffer_size`` is less than 1.
    """
    var = checked_blob(var)
    if buffer_size < 1:
        raise InferenceError.at_caller(
            "flow.experimental.ssp_variable_proxy",
            found=f"buffer_size={buffer_size}",
            allowed="at least 1",
        )
    return var, stale_value(var, int(buffer_size))


def _variable(function: str, op_name: str) -> Any:
    session = default_session()
    session.sync()
    stored = session.stored()
    if op_name not in stored:
        raise VariableError.at_caller(
            f"flow.experimental.{function}",
            found=f"no variable {op_name!r}",
            allowed=", ".join(stored) or "variables of the session's jobs",
            hint=nearest(op_name, stored) or None,
        )
    return stored[op_name]


def get_interface_blob_value(op_name: str) -> Array:
    """Return a copy of a variable's value.

    Returns: An array.

    Raises: VariableError: no job of the session has a variable of this name.

    >>> _ = run(flow.get_variable, "w", (2,), initializer=flow.ones_initializer())
    >>> flow.experimental.get_interface_blob_value("w")
    array([1., 1.], dtype=float32)
    """
    stored = _variable("get_interface_blob_value", op_name)
    with default_session().quiesced():
        value: np.ndarray[Any, Any] = stored.numpy()
    return value


def set_interface_blob_value(op_name: str, ndarray: Array) -> None:
    """Overwrite a variable.

    Args:
        ndarray: an array of its shape and type.

    Raises: VariableError: no job of the session has a variable of this name, or the shapes differ.

    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> _ = job()
    >>> flow.experimental.set_interface_blob_value("w", np.array([3, 4], np.float32))
    >>> job()
    array([3., 4.], dtype=float32)
    """
    stored = _variable("set_interface_blob_value", op_name)
    shape = tuple(stored.info.type.shape)
    if np.shape(ndarray) != shape:
        raise VariableError.at_caller(
            f"flow.experimental.set_interface_blob_value of {op_name!r}",
            found=f"shape {np.shape(ndarray)}",
            allowed=f"shape {shape}",
        )
    default_session().assign({op_name: ndarray})
