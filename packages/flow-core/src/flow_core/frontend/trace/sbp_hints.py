"""Hints: requested distributions of blobs and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.base.errors import GraphError, JobError, SourceLine, user_line
from flow_core.base.shapes import normal_axis
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import input_value
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.frontend.trace.mirrored_view import mirrored_devices
from flow_core.frontend.trace.repeat_acc import per_period
from flow_core.sharding.sbp import NdSbp, Split, format_nd_sbp, parse_sbp
from flow_core.sharding.topology import Placement


@per_period
def parallel_cast(
    input: BlobDef,
    name: str | None = None,
    distribute: Any = None,
    gradient_distribute: Any = None,
) -> BlobDef:
    """The same blob in a requested distribution, its gradient in another one.

    Args:
        input: a logical blob.
        name: name of the op.
        distribute: ``flow.distribute.split(axis)``, ``broadcast()`` or ``auto()``; None asks
            for nothing.
        gradient_distribute: the same for the gradient, as it flows back through this blob.

    Raises:
        JobError: an axis that the blob has not, or the mirrored view of several devices.
    """
    job, line = _consistent_job("parallel_cast"), user_line(2)
    placement = scope_placement(job)
    full = current_scope().prefix + (name or "parallel_cast")
    value = input_value(job, "parallel_cast", input)
    shape = job.builder.type_of(value).shape
    wanted, gradient = (
        job.requested_sbp(d, shape, full, line) for d in (distribute, gradient_distribute)
    )
    return _cast(job, input, name, wanted, gradient, placement, placement, line)


@per_period
def hierarchical_parallel_cast(
    input: BlobDef,
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
    """The same blob in a requested n-D SBP over the hierarchy of the placement in scope.

    Args:
        input: a logical blob.
        parallel_distribution: an SBP per hierarchy dimension, such as ``["S(0)", "B"]``; an
            empty list asks for nothing.
        grad_mode: "manual" (the gradient gets ``grad_parallel_distribution``), "restore" (it
            gets the SBP that the input was asked to have) or None (the compiler's choice).
        grad_parallel_distribution: SBP of the gradient; its length is that of the hierarchy.
        name: name of the op.
        parallel_hierarchy: hierarchy of the same devices, instead of the placement's.
        grad_parallel_hierarchy: the same for the gradient.
        nd_sbp, grad_nd_sbp: later names of the two distributions.

    Raises:
        JobError: SBPs that cannot be read, that do not fit the hierarchy or the blob, a grad_mode
            that does not exist or lacks its SBP, or the mirrored view of several devices.
    """
    attempted = "hierarchical_parallel_cast"
    job, line = _consistent_job(attempted), user_line(2)
    placement = reshaped(attempted, scope_placement(job), parallel_hierarchy, line)
    backward = reshaped(
        attempted, scope_placement(job), grad_parallel_hierarchy or parallel_hierarchy, line
    )
    rank = len(input.shape)
    asked = either(attempted, parallel_distribution, nd_sbp, line)
    if asked is None:
        allowed = 'an SBP per hierarchy dimension, such as ["S(0)", "B"], or an empty list'
        raise JobError(attempted, at=line, found="no distribution", allowed=allowed)
    wanted = requested_nd_sbp(attempted, asked, placement, rank, line)
    given = either(attempted, grad_parallel_distribution, grad_nd_sbp, line)
    gradient = _gradient_sbp(job, input, grad_mode, given, line)
    back = gradient and requested_nd_sbp(attempted, gradient, backward, rank, line)
    return _cast(job, input, name, wanted, back or (), placement, backward, line)


def _consistent_job(attempted: str) -> JobBuild:
    job = current_job(attempted)
    devices = mirrored_devices(job)
    if devices is not None:
        raise JobError(
            attempted,
            at=user_line(3),
            found=f"the mirrored view of {devices}, where devices hold values of their own",
            allowed="the consistent view",
            hint="with flow.scope.consistent_view():",
        )
    return job


def scope_placement(job: JobBuild) -> Placement:
    """The devices in scope."""
    return current_scope().placement or job.default_placement


def reshaped(
    attempted: str, placement: Placement, hierarchy: Sequence[int] | None, line: SourceLine | None
) -> Placement:
    """The same devices in another hierarchy, if one is given."""
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
    """What was given under one of two names, OneFlow 0.4's or its later one."""
    if older is not None and later is not None:
        found = f"parallel_distribution={older!r} and nd_sbp={later!r}"
        raise JobError(attempted, at=line, found=found, allowed="one of the two names")
    return older if later is None else later


def requested_nd_sbp(
    attempted: str,
    texts: Sequence[str],
    placement: Placement,
    rank: int,
    line: SourceLine | None,
) -> tuple[NdSbp, ...]:
    """The n-D SBP that texts ask for; empty on a single device, or where there are no texts.

    Raises:
        JobError: they cannot be read, or do not fit the hierarchy or the blob.
    """
    if isinstance(texts, list | tuple) and not texts:
        return ()  # nothing is asked for
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        allowed = 'a text per hierarchy dimension, such as ["S(0)", "B"]'
        raise JobError(attempted, at=line, found=f"{texts!r:.60}", allowed=allowed)
    try:
        sbp = tuple(_fitted(parse_sbp(text), rank) for text in texts)
    except (GraphError, ValueError) as error:
        found = error.found if isinstance(error, GraphError) else str(error)
        raise JobError(attempted, at=line, found=found, allowed="S(axis), B or P") from None
    if len(sbp) != len(placement.hierarchy):
        raise JobError(
            attempted,
            at=line,
            found=f"{format_nd_sbp(sbp)} for {placement}",
            allowed=f"an SBP for each of {len(placement.hierarchy)} hierarchy dimensions",
            hint='flow.scope.placement("gpu", "0:0-3", (2, 2)) has two',
        )
    return () if placement.size == 1 else (sbp,)


def _fitted(sbp: Any, rank: int) -> Any:
    return Split(normal_axis(sbp.axis, rank)) if isinstance(sbp, Split) else sbp


GRAD_MODES = (None, "auto", "restore", "manual")


def _gradient_sbp(
    job: JobBuild,
    input: BlobDef,
    mode: str | None,
    given: Sequence[str] | None,
    line: SourceLine | None,
) -> Sequence[str] | None:
    """The texts of the SBP that the gradient is to have, None for the compiler's choice."""
    if mode not in GRAD_MODES or (mode == "manual") != (given is not None):
        raise JobError(
            "hierarchical_parallel_cast",
            at=line,
            found=f"grad_mode={mode!r}, grad_parallel_distribution={given!r}",
            allowed='"manual" with an SBP, "restore", "auto" or None without one',
        )
    if mode != "restore" or scope_placement(job).size == 1:
        return given
    op = job.builder.ops[input.value.op]
    asked = op.sbp[input.value.index] if op.sbp else None
    if asked is None:
        raise JobError(
            "hierarchical_parallel_cast",
            at=line,
            found=f'grad_mode="restore" for {input!r}, which has no requested SBP to restore',
            allowed="the result of another cast, or a variable with a requested SBP",
            hint='say what it is: grad_mode="manual", grad_parallel_distribution=["B"]',
        )
    return [str(sbp) for sbp in asked]


def _cast(
    job: JobBuild,
    input: BlobDef,
    name: str | None,
    wanted: tuple[NdSbp, ...],
    gradient: tuple[NdSbp, ...],
    placement: Placement,
    backward: Placement,
    line: SourceLine | None,
) -> BlobDef:
    attrs = {
        "gradient_sbp": format_nd_sbp(gradient[0]) if gradient else None,
        "gradient_hierarchy": backward.hierarchy,
    }
    value = input_value(job, "parallel_cast", input)
    (out,) = job.add(
        "parallel_cast", [value], attrs, name=name, line=line, sbp=wanted, placement=placement
    )
    blob = BlobDef(job, out, input.batch_axis, input.is_dynamic)
    return blob if input.rows is None else blob.with_rows(input.rows)
