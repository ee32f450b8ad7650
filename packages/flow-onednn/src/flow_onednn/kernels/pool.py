"""Pooling over two axes of space.

Max pooling in training is `onednn_max_pool`, which also gives the places of the maxima, from
which its gradient is made without a look at the input.
"""

from __future__ import annotations

from typing import Any

from flow_core.plugins.specs import KernelSpec
from flow_onednn import binding
from flow_onednn.kernels.conv import LAST, first, image
from flow_onednn.library import halves
from flow_onednn.primitives import Primitive, create, dims, nbytes
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, recipe

Shape = tuple[int, ...]
FLOAT = "float32"


def window(attrs: dict[str, Any], x: Shape, y: Shape) -> tuple[Any, ...] | None:
    """Strides, kernel, dilation, padding before and after, as the library takes them.

    None where windows lie partly beyond what padding both sides can describe.
    """
    kernel_, stride = attrs["pool_size"], attrs["strides"]
    before = _before(attrs, x, y)
    after = [
        max(0, (o - 1) * s + k - n - b)
        for n, o, k, s, b in zip(x, y, kernel_, stride, before, strict=True)
    ]
    if any(b >= k or a >= k for b, a, k in zip(before, after, kernel_, strict=True)):
        return None
    return tuple(dims(v) for v in (stride, kernel_, (0, 0), before, after))


def _before(attrs: dict[str, Any], x: Shape, y: Shape) -> list[int]:
    padding = attrs["padding"]
    if padding == "valid":
        return [0, 0]
    if padding == "customized":
        return list(attrs["padding_before"])
    columns = zip(x, y, attrs["pool_size"], attrs["strides"], strict=True)
    total = [max(0, (o - 1) * s + k - n) for n, o, k, s in columns]
    return [(t + (padding == "same_lower")) // 2 for t in total]


def _space(shape: Shape, last: bool) -> Shape:
    return first(shape, last)[2:]


def forward(
    mode: str, attrs: dict[str, Any], x: Shape, y: Shape, prop: int, dtype: str = FLOAT
) -> Primitive | None:
    """The primitive of a pooling."""
    last = attrs["data_format"] == LAST
    widths = window(attrs, _space(x, last), _space(y, last))
    if widths is None:
        return None
    alg = binding.POOLING[mode]
    ends = image(x, last, dtype), image(y, last, dtype)
    return create("pooling_forward", prop, alg, *ends, *widths)


def backward(
    mode: str, attrs: dict[str, Any], x: Shape, y: Shape, dtype: str = FLOAT
) -> Primitive | None:
    """The primitive of the gradient of a pooling."""
    last = attrs["data_format"] == LAST
    hint = forward(mode, attrs, x, y, binding.FORWARD_TRAINING, dtype)
    widths = window(attrs, _space(x, last), _space(y, last))
    if hint is None or widths is None:
        return None
    alg = binding.POOLING[mode]
    ends = image(x, last, dtype), image(y, last, dtype)
    return create("pooling_backward", alg, *ends, *widths, hint.desc)


def places_bytes(attrs: dict[str, Any], x: Shape, y: Shape, dtype: str = FLOAT) -> int | None:
    """The size of the second output of `onednn_max_pool`; None where there is no primitive."""
    native = dtype if dtype in halves() else FLOAT
    made = forward("max", attrs, x, y, binding.FORWARD_TRAINING, native)
    return None if made is None else nbytes(made.md("workspace"))


def _images(p: Problem, x: Shape, y: Shape) -> tuple[Any, Any]:
    last, dtype = p.attrs["data_format"] == LAST, _dtype(p)
    return image(x, last, dtype), image(y, last, dtype)


def _dtype(p: Problem) -> str:
    """The name of the element type of the activations."""
    return p.outputs[0].dtype.name


def _cook_forward(mode: str) -> Any:
    def cook(p: Problem) -> Recipe | None:
        x, y = p.inputs[0].shape, p.outputs[0].shape
        made = forward(mode, p.attrs, x, y, binding.FORWARD_INFERENCE, _dtype(p))
        source, target = _images(p, x, y)
        operands = (Operand("src", 0, source), Operand("dst", 0, target, True))
        return recipe(made, operands)

    return cook


def _cook_average_grad(p: Problem) -> Recipe | None:
    x, y = p.outputs[0].shape, p.inputs[2].shape
    made = backward("avg", p.attrs, x, y, _dtype(p))
    source, target = _images(p, x, y)
    operands = (Operand("diff_dst", 2, target), Operand("diff_src", 0, source, True))
    return recipe(made, operands)


def _cook_with_places(p: Problem) -> Recipe | None:
    x, y = p.inputs[0].shape, p.outputs[0].shape
    made = forward("max", p.attrs, x, y, binding.FORWARD_TRAINING, _dtype(p))
    source, target = _images(p, x, y)
    if made is None:
        return None
    operands = (
        Operand("src", 0, source), Operand("dst", 0, target, True),
        Operand("workspace", 1, made.md("workspace"), True),
    )  # fmt: skip
    return Recipe(made, operands)


def _cook_from_places(p: Problem) -> Recipe | None:
    x, y = p.outputs[0].shape, p.inputs[0].shape
    made = backward("max", p.attrs, x, y, _dtype(p))
    source, target = _images(p, x, y)
    if made is None:
        return None
    operands = (
        Operand("diff_dst", 0, target), Operand("workspace", 1, made.md("workspace")),
        Operand("diff_src", 0, source, True),
    )  # fmt: skip
    return Recipe(made, operands)


def _floats_and_places(query: Any) -> bool:
    types = (*query.inputs, *query.outputs)
    floats = {t.dtype.name for t in types} - {"uint8"}
    return len(floats) == 1 and floats <= {FLOAT, *halves()} and all(t.size for t in types)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("max_pool_2d", _cook_forward("max")),
    kernel("avg_pool_2d", _cook_forward("avg")),
    kernel("avg_pool_2d_grad", _cook_average_grad),
    kernel("onednn_max_pool", _cook_with_places, accepts=_floats_and_places),
    kernel("onednn_max_pool_grad", _cook_from_places, accepts=_floats_and_places),
)
