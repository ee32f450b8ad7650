"""Convolutions with weights that were packed before, in the layout that the primitive selects.

Outside of training, weights change only when variables are overwritten, so that they are packed
once. A residual addition and a limit of the result (such as relu) are part of the primitive. The
library's limit drops NaN; therefore, each launch checks that no operand is large, as in
`flow_onednn.kernels.nan_relu`. The weights are checked when they are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, KernelSpec
from flow_core.base.arrays import Array
from flow_onednn import binding
from flow_onednn.kernels.convolution.conv import Geometry, image, weight
from flow_onednn.kernels.loops import pointer
from flow_onednn.library import library
from flow_onednn.native import compiler
from flow_onednn.primitives import Md, PostOps, Primitive, any_layout, create, nbytes, plain
from flow_onednn.recipes import (
    Operand,
    Problem,
    Recipe,
    is_float32,
    kernel,
    recipe,
)  # fmt: skip
from flow_onednn.threads import whole_budget

PACK, PRODUCT = "onednn_pack_conv", "onednn_packed_conv"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedConv:
    """A convolution with packed weights, of NHWC images.

    Attributes:
        x, y: the shapes of the images.
        sizes: the logical sizes of the weights.
        given: the descriptor of the weights that are packed.
        attrs: the attributes of the op.
    """

    x: Shape
    y: Shape
    sizes: Shape
    given: Md
    attrs: dict[str, AttrValue]

    @classmethod
    def of(cls, attrs: dict[str, AttrValue], filters: Shape) -> PackedConv:
        """Return the convolution of an op with these attributes and this shape of weights."""
        given, sizes = weight(filters, attrs["groups"], attrs["weights_last"], "float32")
        return cls(attrs["image"], attrs["result"], sizes, given, attrs)

    @property
    def limited(self) -> bool:
        """Whether the result is limited."""
        return bool(self.attrs["low"] > -inf or self.attrs["high"] < inf)

    def primitive(self, limited: bool, packed: Md | None = None) -> Primitive | None:
        """Create the primitive; a descriptor of the weights fixes their layout."""
        low, high = self.attrs["low"], self.attrs["high"]
        x, y = image(self.x, True), image(self.y, True)
        operands = ((binding.BINARY_ADD, y),) if self.attrs["residual"] else ()
        post = PostOps(operands)
        if limited and low == 0.0 and high == inf:
            post = PostOps(operands, activation=binding.RELU)
        elif limited:
            post = PostOps(operands, activation=binding.CLIP, alpha=low, beta=high)
        vector = plain((self.y[-1],), "float32") if self.attrs["bias"] else library().ffi.NULL
        geometry = Geometry(self.attrs, self.x[1:3], self.y[1:3])
        with whole_budget():
            return create(
                "convolution_forward", binding.FORWARD_INFERENCE, binding.CONVOLUTION_DIRECT, x,
                packed or any_layout(self.sizes, "float32"), vector, y, *geometry.arguments,
                post=post, math=self.attrs["math"],
            )  # fmt: skip

    def recipe(self, limited: bool, packed: Md | None = None) -> Recipe | None:
        """Return the recipe of the primitive on the inputs of the op."""
        made = self.primitive(limited, packed)
        if made is None:
            return None
        y = image(self.y, True)
        operands = [
            Operand("src", 0, image(self.x, True)), Operand("weights", 1, made.md("weights")),
            Operand("dst", 0, y, True),
        ]  # fmt: skip
        if self.attrs["bias"]:
            operands.append(Operand("bias", 3, plain((self.y[-1],), "float32")))
        if self.attrs["residual"]:
            operands.append(Operand("operand 0", 3 + self.attrs["bias"], y))
        return recipe(made, operands)


def packed_size(attrs: dict[str, AttrValue], filters: Shape) -> int | None:
    """Return the number of elements of packed weights; None if no primitive packs them."""
    if not compiler.available():
        return None
    conv = PackedConv.of(attrs, filters)
    made = conv.primitive(conv.limited)
    return None if made is None else nbytes(made.md("weights")) // 4


@dataclass(frozen=True, slots=True)
class Packing:
    """The reorder of weights to the layout of a primitive, and a check of their size.

    Attributes:
        reorder: the recipe of the reorder.
    """

    reorder: Recipe
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the reorder's workspace."""
        return self.reorder.workspace

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches of the reorder and of the check of weights and bias."""
        checks = tuple(map(_moderate, ctx.inputs))
        moderate = ctx.outputs[1]

        def check() -> None:
            moderate[...] = all(found() for found in checks)

        return [*self.reorder.bind(ctx), check]


def _build_pack(p: Problem) -> Packing | None:
    conv = PackedConv.of(p.attrs, p.inputs[0].shape)
    product = conv.primitive(conv.limited)
    if product is None:
        return None
    target = product.md("weights")
    operands = (Operand("src", 0, conv.given), Operand("dst", 0, target, True))
    made = recipe(create("reorder", conv.given, target), operands)
    return None if made is None else Packing(made)


@dataclass(frozen=True, slots=True)
class LimitedConv:
    """A convolution whose result is limited, and propagates NaN.

    Attributes:
        fast: the convolution with the limit, for moderate numbers.
        exact: the convolution without the limit, which a loop applies.
        low, high: the limits.
    """

    fast: Recipe
    exact: Recipe
    low: float
    high: float
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the larger one of the two workspaces."""
        return max(self.fast.workspace, self.exact.workspace)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launch, which selects one of the recipes."""
        x, _, moderate, *rest = ctx.inputs
        images = (x, *(a for a in rest if a.ndim > 1))
        (y,) = ctx.outputs
        limit: Launch = partial(np.clip, y, self.low, self.high, y)
        exact = [*self.exact.bind(ctx), limit]
        return [_checked(pointer(moderate), images, self.fast.bind(ctx), exact)]


def _checked(
    moderate: Sequence[float],
    images: Sequence[Array],
    fast: Sequence[Launch],
    exact: Sequence[Launch],
) -> Launch:
    """Return a launch that runs ``fast`` if weights and images are moderate, else ``exact``."""
    checks = tuple(map(_moderate, images))

    def run() -> None:
        for launch in fast if moderate[0] and all(check() for check in checks) else exact:
            launch()

    return run


def _moderate(x: Array) -> Callable[[], int]:
    return partial(compiler.native().is_moderate, pointer(x), x.size)


def _build_product(p: Problem) -> Recipe | LimitedConv | None:
    conv = PackedConv.of(p.attrs, p.attrs["filters"])
    made = conv.recipe(conv.limited)
    if made is None or not conv.limited:
        return made
    exact = conv.recipe(False, made.primitive.md("weights"))
    return None if exact is None else LimitedConv(made, exact, p.attrs["low"], p.attrs["high"])


KERNELS: tuple[KernelSpec, ...] = (
    kernel(PACK, _build_pack, accepts=is_float32),
    kernel(PRODUCT, _build_product, accepts=is_float32),
)
