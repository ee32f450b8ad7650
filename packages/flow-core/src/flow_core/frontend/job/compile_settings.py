"""Settings of session and job, converted to the options of passes, lowering and kernels."""

from __future__ import annotations

from typing import Any

from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.lower.physical_graph import Physical
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.frontend.config.function_config import HALF, MIXED, cudnn_options
from flow_core.frontend.config.precision import half_type
from flow_core.frontend.job.replica_sharing import shared_copies
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Attrs
from flow_core.passes.bucket_all_reduces import FUSIBLE
from flow_core.sharding.topology import Device

TENSOR_FLOAT_32 = "enable_tensor_float_32_compute"

FUSED_BY_DEFAULT = ("all_reduce",)
"""The collectives that are bucketed (combined into larger ones) by default."""


def pass_options(build: JobBuild) -> dict[str, Any]:
    """Return the options of passes on the logical graph."""
    config = build.config
    return {
        **bucket_options(build),
        "math_mode": config.get("math_mode"),
        "cudnn": cudnn_options(config),
        "kernels": kernel_settings(build),
    }


def physical_pass_options(build: JobBuild, physical: Physical) -> dict[str, Any]:
    """Return the options of passes on the physical graph."""
    return {**pass_options(build), "shared_copies": shared_copies(build, physical)}


def bucket_options(build: JobBuild) -> dict[str, Any]:
    """Return the options of the pass that combines small collectives into buckets."""
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
    return {
        "bucket_mb": megabytes,
        "bucket_ops": session("nccl_fusion_max_ops", 64),
        "bucket_collectives": fused if session("enable_fusion", True) else (),
    }


def half_type_of(build: JobBuild) -> str:
    """Return the half-precision type of a mixed-precision job."""
    ops = build.builder.ops.values()
    return half_type(build.session.registry, ops, build.config.get(HALF))


def kernel_settings(build: JobBuild) -> Attrs:
    """Return the settings of kernels, which are part of the plan."""
    allowed = build.session.resources.others.get(TENSOR_FLOAT_32, True)
    mixed = {HALF: half_type_of(build)} if build.config.get(MIXED) else {}
    return Attrs({TENSOR_FLOAT_32: allowed, **mixed})


def lowering_options(build: JobBuild, physical: Physical, sharing: ReplicaDedup) -> CompileOptions:
    """Return the options for lowering a physical graph to a plan."""
    config, session = build.config, build.session

    def is_resident(name: str, device: Device) -> bool:
        shard = physical.shards.get(name)
        return session.holds(name if shard is None else shard.variable, device)

    return CompileOptions(
        seed=int(config.get("random_seed") or 0),
        width=int(config.get("concurrency_width")),
        inplace=bool(config.get("enable_inplace")),
        reuse=bool(config.get("enable_reused_mem")),
        workers=session.settings.stream_threads,
        memory_limit=session.free_memory,
        is_resident=is_resident,
        sharing=sharing,
        budget=session.budget,
        settings=kernel_settings(build),
        recording=_recording(build),
        alignment={kind: spec.alignment for kind, spec in session.registry.devices.items()},
    )


def _recording(build: JobBuild) -> frozenset[str]:
    """Return those device types of a job whose drivers record steps, as CUDA graphs for example."""
    devices = build.session.registry.devices
    asked = {op.placement.device_type for op in build.builder.ops.values()}
    return frozenset(kind for kind in asked if kind in devices and devices[kind].records_launches)
