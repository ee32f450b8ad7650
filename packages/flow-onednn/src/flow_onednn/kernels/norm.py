"""Batch normalization of channels-last activations in training, optionally with relu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec, TensorType
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_onednn import binding
from flow_onednn.kernels.loops import FLOAT_BYTES, pointer
from flow_onednn.kernels.upcast import is_half, upcast_kernel, upcast_type
from flow_onednn.library import available, half_types
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import (
    Md,
    Primitive,
    WorkspaceAllocator,
    address,
    create,
    launch,
    nbytes,
    plain,
)
from flow_onednn.recipes import PRIORITY, Known, Problem, problem

MakePrimitive = Known[Primitive | None]
Bind = Callable[[BindContext], list[Launch]]
FLAGS = binding.USE_SCALE | binding.USE_SHIFT


def _image(type_: TensorType) -> Md:
    """Return the descriptor of channels-last activations as (n, channels, height x width, 1)."""
    n, *space, channels = type_.shape
    height = int(np.prod(space)) if space else 1
    sizes = (n, channels, height, 1)
    strides = (height * channels, 1, channels, channels)
    return plain(sizes, type_.dtype.name, strides)


def _is_relu(p: Problem) -> bool:
    return p.op.startswith("onednn_norm_relu")


@Known
def forward(p: Problem) -> Primitive | None:
    """Create the primitive of ``normalization`` or ``onednn_norm_relu``."""
    x = _image(p.inputs[0])
    flags = FLAGS | (binding.FUSE_RELU if _is_relu(p) else 0)
    return create(
        "batch_normalization_forward", binding.FORWARD_TRAINING, x, x, p.attrs["epsilon"], flags
    )


@Known
def backward(p: Problem) -> Primitive | None:
    """Create the primitive of the op's gradient; its variance argument includes epsilon."""
    x = _image(p.inputs[0])
    flags = FLAGS | (binding.FUSE_RELU if _is_relu(p) else 0)
    hint = create("batch_normalization_forward", binding.FORWARD_TRAINING, x, x, 0.0, flags)
    if hint is None:
        return None
    return create("batch_normalization_backward", binding.BACKWARD, x, x, x, 0.0, flags, hint.desc)


def mask_bytes(p: Problem) -> int | None:
    """Return the size of the mask output of `onednn_norm_relu`; None without a primitive."""
    native = p.inputs[0].dtype.name in ("float32", *half_types())
    made = forward(p if native else replace(p, inputs=(upcast_type(p.inputs[0]),)))
    usable = made is not None and compiler.available()
    return nbytes(made.md("workspace")) if made is not None and usable else None


def _accepts(query: KernelQuery) -> bool:
    x, attrs = query.inputs[0], query.attrs
    vectors = [t for t in (*query.inputs, *query.outputs) if len(t.shape) == 1]
    last = len(x.shape) >= 2 and attrs.get("axis", -1) in (-1, len(x.shape) - 1)
    floats = x.dtype.name in ("float32", *half_types()) and all(
        t.dtype.name in ("float32", "uint8") for t in vectors
    )
    return bool(available() and last and floats and attrs.get("training", True) and x.size)


def _has_half_vectors(query: KernelQuery) -> bool:
    """Return whether any vector is bfloat16.

    The kernel accepts no bfloat16 vectors, because it changes the moving statistics in place.
    """
    return any(is_half(t) for t in query.inputs if len(t.shape) == 1)


def _takes(make: MakePrimitive) -> Callable[[KernelQuery], bool]:
    return lambda query: _accepts(query) and make(problem(query)) is not None


def _vector_bytes(query: KernelQuery) -> int:
    return aligned(query.inputs[0].shape[-1] * FLOAT_BYTES)


def _workspace(make: MakePrimitive) -> Callable[[KernelQuery], int]:
    """Return the function that computes the workspace for the variance and the scratchpad."""

    def size(query: KernelQuery) -> int:
        return _vector_bytes(query) + aligned(_checked(make(problem(query)), query).scratchpad)

    return size


def _checked(made: Primitive | None, query: KernelQuery) -> Primitive:
    if made is None:
        raise LookupError(f"no primitive for {query.op}, which was accepted")
    return made


def _vector(ctx: BindContext) -> Array:
    size = ctx.query.inputs[0].shape[-1]
    vector: Array = ctx.workspace[: size * FLOAT_BYTES].view(np.float32)
    return vector


def _bind_forward(ctx: BindContext) -> list[Launch]:
    p = problem(ctx.query)
    x, moving_mean, moving_variance, gamma, beta = ctx.inputs
    y, mean, inverse, *mask = ctx.outputs
    variance = _vector(ctx)
    run = _run(
        forward(p), ctx, mask,
        src=x, dst=y, mean=mean, variance=variance, scale=gamma, shift=beta,
    )  # fmt: skip
    count = x.size // x.shape[-1]
    rate = 1 - ctx.attrs["momentum"]
    # `inverse` is scratch memory for the moving statistics until its own values are computed
    return [
        run,
        *_move(moving_mean, mean, rate, 1.0, inverse),
        *_move(moving_variance, variance, rate, count / max(count - 1, 1), inverse),
        partial(np.add, variance, np.float32(ctx.attrs["epsilon"]), inverse),
        partial(np.sqrt, inverse, inverse),
        partial(np.reciprocal, inverse, inverse),
        *([_nonfinite_channels(x, y, mean, inverse, gamma, beta)] if mask else []),
    ]


def _nonfinite_channels(x: Array, y: Array, *vectors: Array) -> Launch:
    """Return a launch that recomputes channels with NaN, for which the library's relu returns 0."""
    half = x.dtype != np.float32
    name = "norm_relu_nonfinite" + "_bf16" * half
    images = (pointer(a, "uint16_t *" if half else "float *") for a in (x, y))
    columns = x.shape[-1]
    return call(name, *images, *map(pointer, vectors), x.size // columns, columns)


def _move(moving: Array, batch: Array, rate: float, unbias: float, scratch: Array) -> list[Launch]:
    """Return launches that compute ``moving = moving (1 - rate) + batch unbias rate``."""
    return [
        partial(np.multiply, moving, np.float32(1 - rate), moving),
        partial(np.multiply, batch, np.float32(rate * unbias), scratch),
        partial(np.add, moving, scratch, moving),
    ]


def _bind_backward(ctx: BindContext) -> list[Launch]:
    p = problem(ctx.query)
    x, dy, mean, inverse, gamma, *mask = ctx.inputs
    dx, d_gamma, d_beta = ctx.outputs
    variance = _vector(ctx)
    run = _run(
        backward(p), ctx, mask,
        src=x, diff_dst=dy, diff_src=dx, mean=mean, variance=variance, scale=gamma,
        diff_scale=d_gamma, diff_shift=d_beta,
    )  # fmt: skip
    return [
        partial(np.multiply, inverse, inverse, variance),
        partial(np.reciprocal, variance, variance),
        run,
    ]


def _run(
    made: Primitive | None, ctx: BindContext, mask: Sequence[Array], **arrays: Array
) -> Launch:
    made = _checked(made, ctx.query)
    image = _image(ctx.query.inputs[0])
    vector = plain((ctx.query.inputs[0].shape[-1],), "float32")
    tensors = {
        name: (image if array.ndim > 1 else vector, address(array))
        for name, array in arrays.items()
    }
    if mask:
        tensors["workspace"] = (made.md("workspace"), address(mask[0]))
    allocator = WorkspaceAllocator(address(ctx.workspace))
    allocator.allocate(_vector_bytes(ctx.query))
    return launch(made, tensors, allocator.allocate(made.scratchpad))


def _spec(op: str, make: MakePrimitive, bind: Bind) -> KernelSpec:
    def bound(ctx: BindContext) -> Sequence[Launch]:
        return make.bound(problem(ctx.query), bind(ctx))

    spec = KernelSpec(op, "cpu", bound, _takes(make), PRIORITY, _workspace(make), f"onednn.{op}")
    return upcast_kernel(spec, unless=_has_half_vectors)


KERNELS: tuple[KernelSpec, ...] = (
    _spec("normalization", forward, _bind_forward),
    _spec("normalization_grad", backward, _bind_backward),
    _spec("onednn_norm_relu", forward, _bind_forward),
    _spec("onednn_norm_relu_grad", backward, _bind_backward),
)
