"""Casts by which a program requests an SBP for a blob and for the blob's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base.errors import GraphError, JobError, SourceLine, user_line
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.division import mirrored_devices
from flow_core.frontend.trace.emit import input_value
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.frontend.trace.repeat_acc import per_period
from flow_core.frontend.trace.sbp_request import (
    Distribution,
    decode_distribution,
    decode_nd_sbp,
    over_placement,
)
from flow_core.ir.graph import Value
from flow_core.sharding.sbp import NdSbp, format_nd_sbp
from flow_core.sharding.topology import Placement


@per_period
def parallel_cast(
    input: Blob,
    name: str | None = None,
    distribute: Distribution | None = None,
    gradient_distribute: Distribution | None = None,
) -> BlobDef:
    """Request a distribution for a blob, and one for its gradient.

    Args:
        input: a logical blob.
        name: name of the op.
        distribute: ``flow.distribute.split(axis)``, ``broadcast()`` or ``auto()``; None requests
            nothing.
        gradient_distribute: the same for the gradient.

    Returns:
        A blob with the same elements.

    Raises:
        JobError: the blob does not have the axis to split, or the mirrored view of several devices
            is in force.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        ...     with flow.scope.placement("cpu", "0:0-1"):
        ...         return flow.parallel_cast(x, distribute=flow.distribute.split(0)) + 1
        >>> job([1, 2, 3, 4])
        array([2., 3., 4., 5.], dtype=float32)
    """
    job, line = _consistent_job("parallel_cast"), user_line(2)
    input = checked_blob(input, "parallel_cast")
    placement = scope_placement(job)
    full = current_scope().prefix + (name or "parallel_cast")
    asking = f"distribution of {full!r} in job {job.name!r}"
    value = input_value(job, "parallel_cast", input)
    shape = job.builder.type_of(value).shape
    wanted, gradient = (
        over_placement(decode_distribution(d, shape, asking, line), placement)
        for d in (distribute, gradient_distribute)
    )
    return _cast(job, input, value, name, wanted, gradient, placement, placement, line)


@per_period
def hierarchical_parallel_cast(
    input: Blob,
    parallel_distribution: Sequence[str] | None = None,
    grad_mode: str | None = None,
    grad_parallel_distribution: Sequence[str] | None = None,
    name: str | None = None,
    parallel_hierarchy: Sequence[int] | None = None,
    grad_parallel_hierarchy: Sequence[int] | None = None,
    *,
    nd_sbp: Sequence[str] | None = None,
    grad_nd_sbp: Sequence[str] | None = None,
) -> BlobDef:
    """Request an n-D SBP for a blob, over the hierarchy of the placement in scope.

    Args:
        input: a logical blob.
        parallel_distribution: an SBP per hierarchy dimension, such as ``["S(0)", "B"]``; an
            empty list requests nothing.
        grad_mode: "manual" (the gradient gets ``grad_parallel_distribution``), "restore" (the
            gradient gets the SBP requested for the input) or None (the compiler chooses).
        grad_parallel_distribution: SBP of the gradient, one per dimension of the hierarchy.
        name: name of the op.
        parallel_hierarchy: another hierarchy of the same devices, instead of the placement's.
        grad_parallel_hierarchy: the same for the gradient.
        nd_sbp, grad_nd_sbp: the names of the two distributions in later versions of OneFlow.

    Returns:
        A blob with the same elements.

    Raises:
        JobError: the SBP is invalid or does not match the hierarchy or the blob, the grad_mode
            is unknown or lacks its SBP, or the mirrored view of several devices is in force.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        ...     with flow.scope.placement("cpu", "0:0-1"):
        ...         return flow.hierarchical_parallel_cast(x, parallel_distribution=["S(0)"]) + 1
        >>> job([1, 2, 3, 4])
        array([2., 3., 4., 5.], dtype=float32)
    """
    attempted = "hierarchical_parallel_cast"
    job, line = _consistent_job(attempted), user_line(2)
    input = checked_blob(input, attempted)
    placement = reshaped(attempted, scope_placement(job), parallel_hierarchy, line)
    backward_placement = reshaped(
        attempted, scope_placement(job), grad_parallel_hierarchy or parallel_hierarchy, line
    )
    rank = len(input.shape)
    requested = either(attempted, parallel_distribution, nd_sbp, line)
    if requested is None:
        allowed = 'an SBP per hierarchy dimension, such as ["S(0)", "B"], or an empty list'
        raise JobError(attempted, at=line, found="no distribution", allowed=allowed)
    forward_sbp = decode_nd_sbp(attempted, requested, placement, rank, line)
    grad_request = either(attempted, grad_parallel_distribution, grad_nd_sbp, line)
    gradient = _gradient_sbp(job, input, grad_mode, grad_request, line)
    backward_sbp = gradient and decode_nd_sbp(attempted, gradient, backward_placement, rank, line)
    value = input_value(job, "parallel_cast", input)
    sbp = forward_sbp, backward_sbp or ()
    return _cast(job, input, value, name, *sbp, placement, backward_placement, line)


def _consistent_job(attempted: str) -> JobBuild:
    job = current_job(attempted)
    devices = mirrored_devices(job)
    if devices is not None:
        raise JobError.at_caller(
            attempted,
            found=f"the mirrored view of {devices}, where devices hold values of their own",
            allowed="the consistent view",
            hint="cast the blob in a block `with flow.scope.consistent_view():`",
        )
    return job


def scope_placement(job: JobBuild) -> Placement:
    """Return the devices in scope."""
    return current_scope().placement or job.default_placement


def reshaped(
    attempted: str, placement: Placement, hierarchy: Sequence[int] | None, line: SourceLine | None
) -> Placement:
    """Return the placement in another hierarchy if one is given, otherwise unchanged."""
    if hierarchy is None:
        return placement
    try:
        return Placement(placement.device_type, placement.devices, tuple(hierarchy))
    except GraphError as error:
        raise JobError(attempted, at=line, found=error.found, allowed=error.allowed) from None


def either(
    attempted: str,
    older: Sequence[str] | None,
    later: Sequence[str] | None,
    line: SourceLine | None,
) -> Sequence[str] | None:
    """Return the value of an argument that OneFlow 0.4 and later versions name differently."""
    if older is not None and later is not None:
        found = f"parallel_distribution={older!r} and nd_sbp={later!r}"
        raise JobError(attempted, at=line, found=found, allowed="one of the two names")
    return older if later is None else later


GRAD_MODES = (None, "auto", "restore", "manual")


def _gradient_sbp(
    job: JobBuild,
    input: BlobDef,
    mode: str | None,
    given: Sequence[str] | None,
    line: SourceLine | None,
) -> Sequence[str] | None:
    """Return the SBP of the gradient in text form; None if the compiler is to choose it."""
    if mode not in GRAD_MODES or (mode == "manual") != (given is not None):
        raise JobError(
            "hierarchical_parallel_cast",
            at=line,
            found=f"grad_mode={mode!r}, grad_parallel_distribution={given!r}",
            allowed='grad_mode "manual" with an SBP; "restore", "auto" or None without an SBP',
        )
    if mode != "restore" or scope_placement(job).size == 1:
        return given
    producer = job.builder.ops[input.value.op]
    requested = producer.sbp[input.value.index] if producer.sbp else None
    if requested is None:
        raise JobError(
            "hierarchical_parallel_cast",
            at=line,
            found=f'grad_mode="restore" for {input!r}, which has no requested SBP to restore',
            allowed="the result of another cast, or a variable with a requested SBP",
            hint='give the SBP: grad_mode="manual", grad_parallel_distribution=["B"]',
        )
    return [str(sbp) for sbp in requested]


def _cast(
    job: JobBuild,
    input: BlobDef,
    value: Value,
    name: str | None,
    sbp: tuple[NdSbp, ...],
    gradient: tuple[NdSbp, ...],
    placement: Placement,
    backward: Placement,
    line: SourceLine | None,
) -> BlobDef:
    attrs = {
        "gradient_sbp": format_nd_sbp(gradient[0]) if gradient else None,
        "gradient_hierarchy": backward.hierarchy,
    }
    (out,) = job.add(
        "parallel_cast", [value], attrs, name=name, line=line, sbp=sbp, placement=placement
    )
    blob = BlobDef(job, out, input.batch_axis, input.is_dynamic)
    return blob if input.rows is None else blob.with_rows(input.rows)
