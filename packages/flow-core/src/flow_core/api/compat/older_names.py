"""Names of OneFlow's experimental and older programs that work as documented there."""

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
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.frontend.trace.job_build import current_job
from flow_core.frontend.trace.mirrored_view import mirrored_devices, parts_of, to_mirrored, whole_of
from flow_core.sharding.sbp import B, P

__all__ = [
    "eager_assign_121",
    "eager_nccl_all_reduce",
    "get_interface_blob_value",
    "inter_job_reuse_mem_strategy",
    "set_interface_blob_value",
    "ssp_variable_proxy",
]

STRATEGIES = ("reuse_mem_priority", "mem_sharing_priority", "parallelism_priority",
              "custom_parallelism")  # fmt: skip


def inter_job_reuse_mem_strategy(
    strategy_str: str, job_set: object = None, **kwargs: object
) -> None:
    """Validate and store a strategy for sharing memory between jobs.

    It has no effect: each job has its own memory, assigned at compile time.

    Args:
        strategy_str: "reuse_mem_priority", "parallelism_priority" or "custom_parallelism".
        job_set: has no effect.
        kwargs: ``job_name_groups`` of "custom_parallelism", lists of names of jobs.

    Raises:
        ConfigError: another strategy, or "custom_parallelism" without groups of names.
    """
    groups = kwargs.get("job_name_groups")
    custom = strategy_str == "custom_parallelism"
    if strategy_str not in STRATEGIES or (custom and groups is None):
        raise ConfigError(
            "flow.inter_job_reuse_mem_strategy",
            at=user_line(2),
            found=f"{strategy_str!r}" + (" without job_name_groups" if custom else ""),
            allowed=", ".join(STRATEGIES),
        )
    default_session().resources.others["inter_job_reuse_mem_strategy"] = strategy_str


def eager_assign_121(ref: BlobDef, value: BlobDef) -> BlobDef:
    """Assign as `flow.assign` in a job of the eager mode, and return ``ref``."""
    if not default_session().eager:
        raise JobError(
            "flow.experimental.eager_assign_121",
            at=user_line(2),
            found="a session without eager execution",
            allowed="a preceding flow.enable_eager_execution()",
            hint="flow.assign(ref, value) works in both modes",
        )
    assign(ref, value)
    return ref


def eager_nccl_all_reduce(x: BlobDef, parallel_conf: str, name: str | None = None) -> BlobDef:
    """All-reduce (sum) a blob's values on the devices of the mirrored view.

    Args:
        x: a blob.
        parallel_conf: the devices, in OneFlow's form; ignored in favour of the placement in
            scope, which is the same in valid OneFlow programs.
        name: name of the op.
    """
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
    var: BlobDef, buffer_size: int = 1, name: str | None = None
) -> tuple[BlobDef, BlobDef]:
    """A variable to overwrite, and its value ``buffer_size - 1`` steps before.

    In the first ``buffer_size`` steps that is its initial value.  As many steps may be in flight,
    since none waits for the update of the previous one.  Use the results instead of the variable.

    Args:
        var: what `flow.get_variable` returned.
        buffer_size: number of stored values, at least 1.
        name: has no effect.

    Returns:
        The variable, for `flow.assign`, and the stale value.

    Raises:
        InferenceError: a ``buffer_size`` below 1.
    """
    if buffer_size < 1:
        raise InferenceError(
            "flow.experimental.ssp_variable_proxy",
            at=user_line(2),
            found=f"buffer_size={buffer_size}",
            allowed="at least 1",
        )
    return var, stale_value(var, int(buffer_size))


def _variable(function: str, op_name: str) -> Any:
    session = default_session()
    session.sync()
    stored = session.stored()
    if op_name not in stored:
        raise VariableError(
            f"flow.experimental.{function}",
            at=user_line(3),
            found=f"no variable {op_name!r}",
            allowed=", ".join(stored) or "variables of the session's jobs",
            hint=nearest(op_name, stored) or None,
        )
    return stored[op_name]


def get_interface_blob_value(op_name: str) -> Array:
    """Return a copy of a variable's value.

    Raises:
        VariableError: no job of the session has such a variable.
    """
    stored = _variable("get_interface_blob_value", op_name)
    with default_session().quiesced():
        value: np.ndarray[Any, Any] = stored.numpy()
    return value


def set_interface_blob_value(op_name: str, ndarray: Array) -> None:
    """Overwrite a variable.

    Raises:
        VariableError: no job of the session has such a variable, or its shape differs.
    """
    stored = _variable("set_interface_blob_value", op_name)
    shape = tuple(stored.info.type.shape)
    if np.shape(ndarray) != shape:
        raise VariableError(
            f"flow.experimental.set_interface_blob_value of {op_name!r}",
            at=user_line(2),
            found=f"shape {np.shape(ndarray)}",
            allowed=f"shape {shape}",
        )
    default_session().assign({op_name: ndarray})
