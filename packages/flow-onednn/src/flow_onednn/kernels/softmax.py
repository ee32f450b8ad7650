"""Softmax and its gradient."""

from __future__ import annotations

from flow_core.plugins.specs import KernelSpec
from flow_onednn import binding
from flow_onednn.primitives import Md, create, plain
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, recipe


def _array(p: Problem) -> tuple[Md, int]:
    shape = p.outputs[0].shape
    return plain(shape, p.outputs[0].dtype.name), p.attrs["axis"] % len(shape)


def _cook(p: Problem) -> Recipe | None:
    x, axis = _array(p)
    made = create("softmax_forward", binding.FORWARD_TRAINING, binding.SOFTMAX, x, x, axis)
    return recipe(made, (Operand("src", 0, x), Operand("dst", 0, x, True)))


def _cook_grad(p: Problem) -> Recipe | None:
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
    kernel("softmax", _cook),
    kernel("softmax_grad", _cook_grad),
)
