"""The compile request of a job: its graph, with the settings of session and job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flow_core.base.errors import JobError, nearest
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.request import CompileRequest, Limits
from flow_core.frontend.config.function_config import (
    FLOAT32_OPS,
    HALF,
    MIXED,
    indexed_tables,
    micro_batches,
    optimizer_placement,
    pass_settings,
)
from flow_core.frontend.config.precision import half_type
from flow_core.frontend.job.forms.stages import PIPELINE_STAGES
from flow_core.frontend.job.host_fallback import hosting_types
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.job_session import SessionJob
from flow_core.ir.graph import Attrs, Graph, Value
from flow_core.passes.base import Pass
from flow_core.passes.bucket_all_reduces import FUSIBLE, BucketAllReduces
from flow_core.passes.checkpointing import Checkpointing
from flow_core.passes.gradient_accumulation import GradientAccumulation
from flow_core.passes.indexed_slices import IndexedSlices
from flow_core.passes.mixed_precision import MixedPrecision
from flow_core.passes.optimizer_placement import Owned, SharedPlacement
from flow_core.passes.split_norms import SplitNorms, decomposes
from flow_core.sharding.topology import Device

TENSOR_FLOAT_32 = "enable_tensor_float_32_compute"

FUSED_BY_DEFAULT = ("all_reduce",)
"""The collectives that are bucketed (combined into larger ones) by default."""


def compile_request(
    build: JobBuild,  # the job, including its backward pass and updates
    results: Sequence[Value],
    # Names of the ``input`` ops in the order in which arrays are fed to them.
    inputs: Sequence[str],
    effects: bool = True,  # whether to keep ops that only have side effects
    # The devices that the plan has tasks for, in addition to the devices that stand for their
    # classes; None for all devices.
    devices: Collection[Device] | None = None,
) -> CompileRequest:
    """Return the request to compile a job.

    Train jobs of the session that shard variables of this job are compiled first.
    """
    session, config = build.session, build.config
    graph = replace(build.builder.build(), results=tuple(results))
    requested = tuple(_requested_passes(build, graph))
    return CompileRequest(
        job=build.name,
        graph=graph if effects else replace(graph, effects=()),
        inputs=tuple(inputs),
        registry=session.registry,
        requested=requested,
        settings={**pass_settings(config), "check_finite": session.settings.check_finite},
        options=lowering_options(build),
        limits=Limits(session.resources.machine_num, session.free_memory, session.held()),
        layouts=dict(session.layouts),
        shared=dict(session.sharing),
        share_replicas=bool(config.get("share_replicas"))
        and session.settings.emulate_gpu_memory is None,
        may_host=hosting_types(build),
        selector=str(config.get("sbp_selector")),
        selector_seconds=float(config.get("sbp_selector_seconds")),
        micro_batches=micro_batches(config, build.kind),
        devices=devices,
    )


def _requested_passes(build: JobBuild, graph: Graph) -> Iterator[Pass]:
    """Yield the passes whose options settings of the job or the session compute."""
    if build.config.get(MIXED):
        made = frozenset(build.builder.ops) - build.forward if build.forward else frozenset()
        yield MixedPrecision(half_type_of(build), made, _float32_ops(build))
    if build.segments and build.forward:
        yield Checkpointing(tuple(map(tuple, build.segments.values())), build.forward)
    tables = indexed_tables(build.config)
    if tables:
        yield IndexedSlices(tables)
    parts = micro_batches(build.config, build.kind)
    if parts > 1:
        axes = tuple(build.packed.get(value, 0) for value in graph.results)
        yield GradientAccumulation(parts, tuple(build.gradient_sums), axes)
    placed = optimizer_placement(build.config) if build.kind == "train" else None
    if placed is not None:
        yield placed
    shared = _owners_in_other_jobs(build, compiles=placed is None and not build.stages)
    ops = build.builder.ops
    for name, place in build.session.staged.items():
        if name in ops and ops[name].placement != place.placement:
            shared.setdefault(name, place)
    if shared:
        yield SharedPlacement(shared)
    if any(map(decomposes, build.builder.ops.values())):
        yield SplitNorms({name: layout.sbp for name, layout in build.session.layouts.items()})
    buckets = bucketing(build)
    if any(spec.name == buckets.name for spec in build.session.registry.passes):
        yield buckets


def _float32_ops(build: JobBuild) -> frozenset[str]:
    """Return the names of the ops that mixed precision keeps in float32.

    Raises `JobError` if the job has no op of such a name.
    """
    names = build.config.get(FLOAT32_OPS) or ()
    for name in names:
        if name not in build.builder.ops:
            raise JobError(
                f"keeping ops of job {build.name!r} in float32",
                found=f"function_config.{FLOAT32_OPS} with {name!r}, which is no op of the job",
                allowed="names of its ops, which `flow verify --precision` and `flow plan --full` "
                "print",
                hint=nearest(name, build.builder.ops) or None,
            )
    return frozenset(names)


def _owners_in_other_jobs(build: JobBuild, compiles: bool) -> dict[str, Owned]:
    """Return the variables that other jobs of the session shard over devices, and their owners.

    Args:
        build: the job, which must follow the sharding of train jobs that share its variables.
        compiles: whether to compile those train jobs, and jobs in stages, first, if that has not
            been done.
    """

    def owned(job: SessionJob) -> Mapping[str, Owned]:
        if job.name == build.name or job.kind != "train":
            return {}
        if compiles and (optimizer_placement(job.config) or job.config.get(PIPELINE_STAGES)):
            job.compile()
        return job.owners  # also of a job that was sharded to fit into its devices

    return {name: place for found in build.session.each(owned) for name, place in found.items()}


def bucketing(build: JobBuild) -> BucketAllReduces:
    """Return the pass that combines small collectives into buckets."""
    settings, config = build.session.resources.others, build.config

    def session(name: str, default: object) -> Any:
        return settings.get(f"collective_boxing.{name}", default)

    fused = tuple(
        name for name in FUSIBLE if session(f"nccl_fusion_{name}", name in FUSED_BY_DEFAULT)
    )
    if not config.get("enable_all_reduce_group"):
        fused = tuple(name for name in fused if name != "all_reduce")
    megabytes = session("nccl_fusion_threshold_mb", 16)
    if config.is_set("all_reduce_group_min_mbyte"):
        megabytes = config.get("all_reduce_group_min_mbyte")
    return BucketAllReduces(
        threshold_mb=float(megabytes),
        max_ops=int(session("nccl_fusion_max_ops", 64)),
        collectives=fused if session("enable_fusion", True) else (),
    )


def half_type_of(build: JobBuild) -> str:
    """Return the half-precision type of a mixed-precision job."""
    ops = build.builder.ops.values()
    return half_type(build.session.registry, ops, build.config.get(HALF))


def kernel_settings(build: JobBuild) -> Attrs:
    """Return the settings of kernels, which are part of the plan."""
    allowed = build.session.resources.others.get(TENSOR_FLOAT_32, True)
    mixed = {HALF: half_type_of(build)} if build.config.get(MIXED) else {}
    return Attrs({TENSOR_FLOAT_32: allowed, **mixed})


def lowering_options(build: JobBuild) -> CompileOptions:
    """Return the options for lowering a physical graph to a plan."""
    config, session = build.config, build.session
    placed = optimizer_placement(config) if build.kind == "train" else None
    return CompileOptions(
        seed=int(config.get("random_seed") or 0),
        width=int(config.get("concurrency_width")),
        inplace=bool(config.get("enable_inplace")),
        reuse=bool(config.get("enable_reused_mem")),
        workers=session.settings.stream_threads,
        budget=session.budget,
        settings=kernel_settings(build),
        batching=session.settings.check_finite == "off",  # a check names the device
        recording=_recording(build),
        alignment={kind: spec.alignment for kind, spec in session.registry.devices.items()},
        costs=session.costs,
        ahead=placed.ahead if placed else None,
    )


def _recording(build: JobBuild) -> frozenset[str]:
    """Return those device types of a job whose drivers record steps, as CUDA graphs for example."""
    devices = build.session.registry.devices
    asked = {op.placement.device_type for op in build.builder.ops.values()}
    return frozenset(kind for kind in asked if kind in devices and devices[kind].records_launches)
