"""Convolutions of int8 images with packed int8 weights; matrix products are 1 x 1 convolutions.

Levels, less a zero point, stand for multiples of a scale: images have one grid, and each filter has
a scale of its own.  The library multiplies the sums of a filter by a factor, adds a bias and a
residual, applies relu, and divides by the scale of the result, if the result is int8.  Its residual
has no grid, so that the factors, the bias and the scale of the result are multiples of the
residual's scale, and the bias is less by the residual's zero point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, KernelQuery, KernelSpec
from flow_onednn import binding
from flow_onednn.kernels.convolution.conv import Geometry, image, weight
from flow_onednn.library import has_int8
from flow_onednn.primitives import Md, PostOps, Primitive, any_layout, create, nbytes, plain
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, recipe
from flow_onednn.threads import whole_budget

PACK, PRODUCT = "onednn_pack_int8", "onednn_int8_conv"
LEVELS = ("int8", "uint8")
ZEROS = {"src zero points": "image_zero", "dst zero points": "result_zero"}
"""Attributes of the zero points that are arguments of the primitive."""


@dataclass(frozen=True, slots=True)
class Int8Conv:
    """A convolution of NHWC images."""

    attrs: dict[str, AttrValue]
    x: Md  # the descriptors of the images
    y: Md
    given: Md  # the descriptor of the weights before they are packed
    sizes: tuple[int, ...]  # the logical sizes of the weights

    @classmethod
    def of(cls, attrs: dict[str, AttrValue]) -> Int8Conv:
        """Return the convolution of an op with these attributes."""
        x, y = (image(attrs[name], True, attrs[f"{name}_type"]) for name in ("image", "result"))
        filters = attrs["filters"]
        given, sizes = weight(filters, attrs["groups"], attrs["weights_last"], "int8")
        if attrs["transposed"]:
            given = plain(filters, "int8", (1, filters[0], 1, 1))
        return cls(attrs, x, y, given, sizes)

    @property
    def _channels(self) -> int:
        return int(self.attrs["result"][-1])

    def primitive(self) -> Primitive | None:
        """Create the primitive, which selects the layout of the weights."""
        with whole_budget():
            return self.primitive_of_pool()

    def primitive_of_pool(self, packed: Md | None = None, warns: bool = True) -> Primitive | None:
        """Create the primitive for the threads of the calling thread's pool; see `create`.

        A descriptor of the weights fixes their layout.
        """
        attrs, grouped = self.attrs, self.attrs["groups"] > 1
        residual = attrs["residual_type"]
        added = image(attrs["result"], True, residual) if residual else None
        scales = [("weights scales", 0b11 if grouped else 0b1)]
        if attrs["result_type"] in LEVELS or residual:
            scales.append(("dst scales", 0))
        shifted = [role for role, name in ZEROS.items() if attrs[name]]
        post = PostOps(
            () if added is None else ((binding.BINARY_ADD, added),),
            **_limits(attrs),
            scales=tuple(scales),
            zero_points=tuple(shifted),
        )
        geometry = Geometry(attrs, attrs["image"][1:3], attrs["result"][1:3])
        return create(
            "convolution_forward", binding.FORWARD_INFERENCE, binding.CONVOLUTION_DIRECT, self.x,
            packed or any_layout(self.sizes, "int8"), plain((self._channels,), "float32"), self.y,
            *geometry.arguments, post=post, warns=warns,
        )  # fmt: skip

    def with_operands(self, made: Primitive) -> Recipe:
        """Return the recipe of a primitive on the inputs of the op."""
        return Recipe(made, tuple(self._operands(made)))

    def _operands(self, made: Primitive) -> Iterator[Operand]:
        vector, one = plain((self._channels,), "float32"), plain((1,), "float32")
        yield Operand("src", 0, self.x)
        yield Operand("weights", 1, made.md("weights"))
        yield Operand("weights scales", 2, vector)
        yield Operand("bias", 3, vector)
        residual = self.attrs["residual_type"]
        if self.attrs["result_type"] in LEVELS or residual:
            yield Operand("dst scales", 4, one)
        for place, (role, name) in enumerate(ZEROS.items()):
            if self.attrs[name]:
                yield Operand(role, 5, plain((1,), "int32"), offset=4 * place)
        if residual:
            yield Operand("operand 0", 6, image(self.attrs["result"], True, residual))
        yield Operand("dst", 0, self.y, True)


def _limits(attrs: dict[str, AttrValue]) -> dict[str, Any]:
    """Return the activation that limits a result."""
    if attrs["high"] < inf:
        low = 0.0 if attrs["relu"] else -inf
        return {"activation": binding.CLIP, "alpha": low, "beta": attrs["high"]}
    return {"activation": binding.RELU if attrs["relu"] else None}


def packed_size(attrs: dict[str, AttrValue]) -> int | None:
    """Return the number of bytes of packed weights; None without a primitive."""
    made = Int8Conv.of(attrs).primitive() if has_int8() else None
    return None if made is None else nbytes(made.md("weights"))


@dataclass(frozen=True, slots=True)
class Packing:
    """The reorder of weights to the layout of a primitive, and the factors of its results."""

    reorder: Recipe
    attrs: dict[str, AttrValue]
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the reorder's workspace."""
        return self.reorder.workspace

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches of the reorder and of the factors."""
        _, scale, x_scale, *more = ctx.inputs
        _, factors, bias, result, zeros = ctx.outputs
        rest = iter(more)
        given = next(rest) if self.attrs["bias"] else np.zeros(1, np.float32)
        unit = next(rest) if self.attrs["residual_type"] else np.ones(1, np.float32)
        end = next(rest) if self.attrs["result_type"] in LEVELS else np.ones(1, np.float32)

        def measure() -> None:
            factors[...] = scale * (x_scale.astype(np.float64) / unit)
            bias[...] = given / unit - self.attrs["residual_zero"]
            result[...] = end / unit
            zeros[...] = [self.attrs[name] for name in ZEROS.values()]

        return [*self.reorder.bind(ctx), measure]


def _build_pack(p: Problem) -> Packing | None:
    conv = Int8Conv.of(p.attrs)
    product = conv.primitive()
    if product is None:
        return None
    target = product.md("weights")
    operands = (Operand("src", 0, conv.given), Operand("dst", 0, target, True))
    made = recipe(create("reorder", conv.given, target), operands)
    return None if made is None else Packing(made, p.attrs)


def _build_product(p: Problem) -> Recipe | None:
    conv = Int8Conv.of(p.attrs)
    made = conv.primitive()
    return None if made is None else conv.with_operands(made)


def _accepts(query: KernelQuery) -> bool:
    return has_int8() and query.inputs[0].dtype.name in LEVELS


KERNELS: tuple[KernelSpec, ...] = (
    kernel(PACK, _build_pack, accepts=_accepts),
    kernel(PRODUCT, _build_product, accepts=_accepts),
)
