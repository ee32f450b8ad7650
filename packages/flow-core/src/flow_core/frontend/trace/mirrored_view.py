"""Ops in the mirrored view of several devices, and conversions between the views.

In the mirrored view, an op of the program becomes one op per device, placed on that device alone,
and a blob has one value per device, each with its own shape.  A logical value, such as a variable,
enters the mirrored view as the parts that the devices hold; the gradient of a variable is summed
over the devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.base.errors import InferenceError, JobError, SourceLine
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.frontend.trace.division import division, is_undistributed_variable
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.per_device import differs, on_device
from flow_core.frontend.trace.valid_rows import all_rows
from flow_core.ir.graph import AttrValue, Value
from flow_core.ops.data_movement.mirrored import local_shapes
from flow_core.sharding.sbp import B, NdSbp, Sbp, Split, format_nd_sbp
from flow_core.sharding.topology import Placement


def emit_mirrored(
    job: JobBuild,
    devices: Placement,
    op_type: str,
    inputs: Sequence[BlobDef],
    attrs: Mapping[str, AttrValue],
    name: str | None,
    line: SourceLine | None,
) -> tuple[MirroredBlob, ...]:
    """Add one op per device and return the outputs."""
    taken = [to_mirrored(job, x, devices, op_type, line) for x in inputs]
    spec = job.emitter.spec(op_type, line)
    _check_overwritten(job, devices, op_type, [taken[i] for i in spec.mutates if i < len(taken)])
    names = job.names_per_device(name or op_type, devices.size)
    outputs = [
        job.add(
            op_type,
            [x.parts[rank] for x in taken],
            {key: on_device(value, rank) for key, value in attrs.items()},
            full=names[rank],
            line=line,
            placement=devices.only(rank),
        )
        for rank in range(devices.size)
    ]
    is_equal = not (spec.random or differs(tuple(attrs.values())) or any(x.differs for x in taken))
    dynamic = op_type != "cast_to_static_shape" and any(x.is_dynamic for x in taken)
    blobs = [
        MirroredBlob(job, parts, devices, differs=not is_equal, is_dynamic=dynamic)
        for parts in zip(*outputs, strict=True)
    ]
    for blob in blobs:
        blob.batch_axis = kept_batch_axis(blob, taken)
    return tuple(blobs)


def kept_batch_axis(output: BlobDef, inputs: Sequence[BlobDef]) -> int | None:
    """Return the batch axis of the first input if the output has the same size along that axis."""
    if not inputs or inputs[0].batch_axis is None:
        return None
    axis: int = inputs[0].batch_axis
    before, after = _sizes(inputs[0], axis), _sizes(output, axis)
    return axis if before == after else None


def _sizes(blob: BlobDef, axis: int) -> list[tuple[int, ...]]:
    """Return the size of an axis on each device; empty if the blob has too few axes."""
    return [blob.job.builder.type_of(part).shape[axis : axis + 1] for part in blob.parts]


def _check_overwritten(
    job: JobBuild, devices: Placement, op_type: str, targets: Sequence[MirroredBlob]
) -> None:
    """Require that an op overwrites only variables that its own devices hold."""
    for target in targets:
        cast = job.builder.ops[target.parts[0].op]
        source = job.builder.ops[cast.inputs[0].op] if cast.inputs else cast
        held = format_nd_sbp(source.sbp[0] or (B,)) if source.sbp else None
        if source.placement.devices != devices.devices or held != cast.attrs.get("sbp"):
            raise JobError(
                f"use of {op_type}",
                at=job.builder.lines.get(cast.name),
                found=f"{source.type} {source.name!r} as {held} on {source.placement}, "
                f"the op on {devices}",
                allowed="a variable on the op's devices, in the distribution that the op uses",
                hint="create the variable in the same placement scope, without a distribution",
            )


# --------------------------------------------------------------------------- between the views


def to_mirrored(
    job: JobBuild, blob: BlobDef, devices: Placement, attempted: str, line: SourceLine | None
) -> MirroredBlob:
    """Convert a blob to one value per device; a logical blob is divided among the devices.

    Raises:
        JobError: the blob is on another number of devices, or cannot be divided among the devices.
    """
    if isinstance(blob, MirroredBlob):
        if len(blob.parts) != devices.size:
            raise JobError(
                f"use of {attempted}",
                at=line,
                found=f"{blob!r} of {len(blob.parts)} devices in the mirrored view of {devices}",
                allowed=f"blobs of {devices.size} devices",
                hint="enter a flow.scope.placement with as many devices as the blob has",
            )
        return blob
    all_rows(f"use of {attempted} in the mirrored view", blob, line)
    sbp = division(job, blob)
    if blob.requested is None and is_undistributed_variable(job, blob.value):
        job.request_broadcast(blob.value.op)
    known = job.mirrored.get((blob.value, devices, sbp))
    if known is None:
        known = _divide(job, blob, devices, sbp, attempted, line)
        job.mirrored[blob.value, devices, sbp] = known
    return MirroredBlob(
        job,
        known,
        devices,
        differs=not isinstance(sbp, type(B)),
        batch_axis=blob.batch_axis,
        is_dynamic=blob.is_dynamic,
    )


def _divide(
    job: JobBuild,
    blob: BlobDef,
    devices: Placement,
    sbp: Sbp,
    attempted: str,
    line: SourceLine | None,
) -> tuple[Value, ...]:
    try:
        return parts_of(job, blob.value, (sbp,), devices, line)
    except InferenceError:
        raise JobError(
            f"use of {attempted}",
            at=line,
            found=f"{blob!r} in the mirrored view of {devices.size} devices",
            allowed=f"logical blobs of at least {devices.size} samples",
        ) from None


def parts_of(
    job: JobBuild,
    value: Value,
    sbp: NdSbp,
    devices: Placement,
    line: SourceLine | None,
    name: str | None = None,
) -> tuple[Value, ...]:
    """Convert a logical value to one value per device."""
    attrs = {"sbp": format_nd_sbp(sbp), "hierarchy": devices.hierarchy}
    full = name or job.builder.unique_name(f"{value.op}/cast_to_mirrored")
    return job.add("cast_to_mirrored", [value], attrs, full=full, line=line, placement=devices)


def whole_of(
    job: JobBuild,
    parts: Sequence[Value],
    sbp: Sbp,
    devices: Placement,
    line: SourceLine | None,
    name: str | None = None,
) -> Value:
    """Combine one value per device, distributed as S(axis), B or P, into a logical value.

    The parts of an unbalanced split are concatenated.
    """
    types = [job.builder.type_of(p) for p in parts]
    shape = types[0].shape
    if isinstance(sbp, Split):
        size = sum(t.shape[sbp.axis] for t in types)
        shape = (*shape[: sbp.axis], size, *shape[sbp.axis + 1 :])
        if [t.shape for t in types] != local_shapes(shape, (sbp,), devices.hierarchy):
            full = name or job.builder.unique_name(f"{parts[0].op}/concat")
            joined = {"axis": sbp.axis}
            return job.add("concat", parts, joined, full=full, line=line, placement=devices)[0]
    full = name or job.builder.unique_name(f"{parts[0].op}/cast_from_mirrored")
    attrs = {"sbp": format_nd_sbp((sbp,)), "hierarchy": devices.hierarchy, "shape": shape}
    return job.add("cast_from_mirrored", parts, attrs, full=full, line=line, placement=devices)[0]


def to_consistent(job: JobBuild, blob: MirroredBlob, line: SourceLine | None) -> BlobDef:
    """Convert one value per device to a logical value by concatenating the devices' batches.

    Raises `JobError` if the devices' values may differ and have no batch axis.
    """
    all_rows("cast_to_current_logical_view", blob, line)
    if not blob.differs:
        return BlobDef(job, whole_of(job, blob.parts, B, blob.placement, line))
    if blob.batch_axis is None:
        raise JobError(
            "cast_to_current_logical_view",
            at=line,
            found=f"{blob!r}, with a value per device and no batch axis",
            allowed="blobs with a batch axis, or with the same value on all devices",
            hint="reduce over the batch in the consistent view, or return the blob as a list "
            "(annotate the job with -> tp.ListNumpy)",
        )
    sbp = Split(blob.batch_axis)
    value = whole_of(job, blob.parts, sbp, blob.placement, line)
    return BlobDef(job, value, blob.batch_axis, is_dynamic=blob.is_dynamic)
