"""Softmax as a C loop over rows, and the gradient of softmax as a primitive.

The library's softmax is not used, because it returns finite numbers for rows with NaN or infinity.
"""

from __future__ import annotations

from functools import partial

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_onednn import binding
from flow_onednn.kernels.loops import pointer, upcast_loop_kernel
from flow_onednn.native import compiler
from flow_onednn.primitives import Md, create, plain
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, recipe


def _array(p: Problem) -> tuple[Md, int]:
    shape = p.outputs[0].shape
    return plain(shape, p.outputs[0].dtype.name), p.attrs["axis"] % len(shape)


def _over_rows(query: KernelQuery) -> bool:
    """Return whether softmax is taken over the last axis of a float32 array."""
    (x,), axis = query.inputs, query.attrs["axis"]
    return x.dtype.name == "float32" and axis % len(x.shape) == len(x.shape) - 1


def _bind(ctx: BindContext) -> Launch:
    (x,), (y,) = ctx.inputs, ctx.outputs
    columns = x.shape[-1]
    return partial(compiler.native().softmax, pointer(x), pointer(y), x.size // columns, columns)


def _build_grad(p: Problem) -> Recipe | None:
    x, axis = _array(p)
    hint = create("softmax_forward", binding.FORWARD_TRAINING, binding.SOFTMAX, x, x, axis)
    if hint is None:
        return None
    made = create("softmax_backward", binding.SOFTMAX, x, x, x, axis, hint.desc)
    operands = (
        Operand("dst", 0, x), Operand("diff_dst", 1, x), Operand("diff_src", 0, x, True),
    )  # fmt: skip
    return recipe(made, operands)


KERNELS: tuple[KernelSpec, ...] = (
    upcast_loop_kernel("softmax", _bind, _over_rows),
    kernel("softmax_grad", _build_grad),
)
