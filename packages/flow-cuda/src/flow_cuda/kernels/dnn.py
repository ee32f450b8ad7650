"""Kernels of the cuDNN ops, each bound to the execution plan that a pass chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.errors import install_command
from flow_cuda.cudnn.attention import Attention, AttentionGrad, rows
from flow_cuda.cudnn.norm import STATISTICS, Norm, NormGrad
from flow_cuda.cudnn.plans import DnnError
from flow_cuda.cudnn.problems import Convolution, Problem, Search, convolution, tensor_layout
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.launch import DnnLaunch, Read, call
from flow_cuda.kernels.binding import buffer_bytes, collect_launches, kernel, split_workspace
from flow_cuda.kernels.matmul import is_floating


def conv_problem(query: KernelQuery) -> Convolution:
    """Return the problem of a convolution op of flow-core or flow-cuda."""
    kind, (x, w, y) = conv_tensors(query)
    attrs = query.attrs
    bias, adds = (len(query.inputs) > n for n in (2, 3))
    relu = attrs.get("activation") == "relu"
    return convolution(kind, (x, w, y), attrs, bias=bias, relu=relu, adds=adds)


def conv_tensors(query: KernelQuery) -> tuple[str, tuple[TensorType, TensorType, TensorType]]:
    """Return the kind of convolution, and the types of input, weights and output."""
    given, made = query.inputs, query.outputs[0]
    if query.op == "cudnn_conv_data_grad":
        return "data_grad", (made, given[1], given[0])
    if query.op == "cudnn_conv_filter_grad":
        return "filter_grad", (given[1], made, given[0])
    return "forward", (given[0], given[1], made)


def _bind(problem_of: Callable[[KernelQuery], Problem], ctx: BindContext) -> Launch:
    return bind_problem(ctx, problem_of(ctx.query), ctx.outputs, ctx.workspace)


def bind_problem(
    ctx: BindContext,
    problem: Problem,
    outputs: tuple[DeviceArray, ...],
    workspace: DeviceArray | None,
) -> Launch:
    """Return the launch of a problem whose tensors are those of the op, in the same order."""
    hardware = outputs[0].hardware
    workspace_bytes = 0 if workspace is None else workspace.nbytes
    plan = _plan(hardware.dnn, problem, ctx.attrs, workspace_bytes)
    reads = dict(zip(problem.reads, ctx.inputs, strict=True))
    writes = dict(zip(problem.writes, outputs, strict=True))
    return DnnLaunch(hardware, problem, plan, reads, writes, workspace)


def _plan(plans: Any, problem: Problem, attrs: Mapping[str, Any], workspace_bytes: int) -> str:
    """Build the plan of the op, check its workspace size, and return its name."""
    if plans is None:
        raise DnnError(
            f"binding {problem.title}",
            found="a cuDNN execution plan, but cuDNN is not available",
            allowed="machines with cuDNN",
            hint=f"install cuDNN ({install_command('flow-cuda[cu12]')}, or [cu13]), "
            "or compile on this machine",
        )
    name = str(attrs["plan"])
    if not name:
        choice = plans.choose(problem, Search(limit=workspace_bytes))
        name = "" if choice is None else choice.plan
    needed = plans.planned(problem, name).workspace
    if needed > workspace_bytes:
        raise DnnError(
            f"binding {problem.title} by {name!r}",
            found=f"{needed} bytes of workspace on this device, {workspace_bytes} in the plan",
            allowed="the kind of device that the program was compiled for",
            hint="compile the program on this machine",
        )
    return name


def _workspace_bytes(query: KernelQuery) -> int:
    size: Any = query.attrs["workspace"]
    return int(size)


def _takes_conv(query: KernelQuery) -> bool:
    """Accept floating-point types; reject a bias in float64, which cuDNN does not fuse."""
    wide = query.outputs[0].dtype.name == "float64"
    return is_floating(query) and not (wide and len(query.inputs) > 2)


def attention_problem(query: KernelQuery) -> Attention | AttentionGrad:
    """Return the problem of an attention op."""
    attrs, rank = query.attrs, len(query.inputs[0].shape)
    scale: Any = attrs["scale"]
    q, k, v, *rest = (rows(t, rank) for t in query.inputs)
    if query.op == "cudnn_attention":
        mask = rest[0] if rest else None
        return Attention(q, k, v, rows(query.outputs[0]), scale, mask, bool(attrs["saves"]))
    mask = rest[3] if len(rest) > 3 else None
    return AttentionGrad(q, k, v, rest[0], scale, mask, bool(attrs["deterministic"]))


def _is_half(query: KernelQuery) -> bool:
    """Whether all tensors except the log-sum-exp have the same 16-bit type."""
    kinds = {t.dtype.name for t in (*query.inputs, *query.outputs) if t.shape[-1:] != (1,)}
    return kinds in ({"float16"}, {"bfloat16"}) and all(t.size for t in query.inputs)


def norm_problem(query: KernelQuery) -> Norm | NormGrad:
    """Return the problem of a batch-normalization op of flow-core or flow-cuda."""
    attrs, x = query.attrs, query.inputs[0]
    axis: Any = attrs["axis"]
    first = axis % len(x.shape) == 1
    form = tensor_layout(x, "channels_first" if first else "channels_last")
    if query.op == "cudnn_norm_grad":
        return NormGrad(form)
    numbers: Any = [attrs[name] for name in ("epsilon", "momentum")]
    epsilon, momentum = map(float, numbers)
    adds, relu = len(query.inputs) > 5, attrs["activation"] == "relu"
    return Norm(form, epsilon, momentum, adds, relu)


def _norm(ctx: BindContext) -> Iterator[Launch]:
    """Yield a launch that writes new moving statistics to the workspace, and their copy."""
    row = ctx.inputs[1]
    buffers = (
        ((_workspace_bytes(ctx.query),), np.uint8),
        *((row.shape, np.float32) for _ in STATISTICS),
    )
    workspace, *fresh = split_workspace(ctx.workspace, buffers)
    outputs = (*ctx.outputs, *fresh)
    yield bind_problem(ctx, norm_problem(ctx.query), outputs, workspace if workspace.size else None)
    sources = (Read(source) for source in fresh)
    yield call("copy_two", "move.h", (), *sources, *ctx.inputs[1:3], row.size, items=row.size)


def _norm_workspace(query: KernelQuery) -> int:
    row = query.inputs[1].shape
    return buffer_bytes(
        (((_workspace_bytes(query),), np.uint8), *((row, np.float32) for _ in STATISTICS))
    )


def takes_norm(query: KernelQuery) -> bool:
    """Require float32 parameters and statistics, and channels on axis 1 or the last axis."""
    x, axis = query.inputs[0], query.attrs["axis"]
    rows = [t for t in (*query.inputs, *query.outputs) if len(t.shape) == 1]
    floats = x.dtype.name in ("float32", "float16", "bfloat16")
    known = len(x.shape) in (3, 4, 5) and axis % len(x.shape) in (1, len(x.shape) - 1)
    return floats and known and bool(x.size) and {t.dtype.name for t in rows} == {"float32"}


KERNELS: tuple[KernelSpec, ...] = (
    *(
        kernel(op, partial(_bind, conv_problem), _takes_conv, _workspace_bytes)
        for op in ("cudnn_conv", "cudnn_conv_data_grad", "cudnn_conv_filter_grad")
    ),
    *(
        kernel(op, partial(_bind, attention_problem), _is_half, _workspace_bytes)
        for op in ("cudnn_attention", "cudnn_attention_grad")
    ),
    kernel("cudnn_norm", collect_launches(_norm), takes_norm, _norm_workspace),
    kernel("cudnn_norm_grad", partial(_bind, norm_problem), takes_norm, _workspace_bytes),
)
