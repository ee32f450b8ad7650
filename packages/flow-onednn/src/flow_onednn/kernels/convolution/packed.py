"""Convolutions with weights that another op has packed in the layout that the primitive selects.

Outside of training, weights change only when variables are overwritten, so that they are packed
once. A residual addition and a limit of the result (such as relu) are part of the primitive. The
library's limit drops NaN, which a sum of finite products does not contain. Therefore, each
convolution computes a bound of its result from the bound of its input and from the weights. It
reads the input only if it has no bound for it, or if the bound is too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import (
    AttrValue,
    BindContext,
    KernelQuery,
    KernelSpec,
    TensorType,
    tensor_type,
)
from flow_core.base.arrays import Array
from flow_onednn import binding
from flow_onednn.kernels.convolution.conv import Geometry, image, weight
from flow_onednn.kernels.loops import null, pointer
from flow_onednn.kernels.nan_relu import bounded
from flow_onednn.library import library
from flow_onednn.native import compiler
from flow_onednn.native.calls import Call, call, choice
from flow_onednn.primitives import Md, PostOps, Primitive, any_layout, create, nbytes, plain
from flow_onednn.recipes import Operand, Problem, Recipe, kernel, product_types, recipe
from flow_onednn.threads import whole_budget

PACK, PRODUCT = "onednn_pack_conv", "onednn_packed_conv"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedConv:
    """A convolution with packed weights, of NHWC images."""

    x: Shape  # the shapes of the images
    y: Shape
    sizes: Shape  # the logical sizes of the weights
    given: Md  # the descriptor of the weights that are packed
    attrs: dict[str, AttrValue]
    dtype: str  # the name of the element type of images, weights and bias

    @classmethod
    def of(cls, attrs: dict[str, AttrValue], filters: TensorType) -> PackedConv:
        """Return the convolution of an op with these attributes and this type of weights."""
        dtype = filters.dtype.name
        given, sizes = weight(filters.shape, attrs["groups"], attrs["weights_last"], dtype)
        return cls(attrs["image"], attrs["result"], sizes, given, attrs, dtype)

    @property
    def _ends(self) -> tuple[Md, Md]:
        return image(self.x, True, self.dtype), image(self.y, True, self.dtype)

    @property
    def _vector(self) -> Md:
        return plain((self.y[-1],), self.dtype)

    @property
    def limited(self) -> bool:
        """Whether the result is limited."""
        return bool(self.attrs["low"] > -inf or self.attrs["high"] < inf)

    def primitive(self, limited: bool, packed: Md | None = None) -> Primitive | None:
        """Create the primitive; a descriptor of the weights fixes their layout."""
        with whole_budget():
            return self.primitive_of_pool(limited, packed)

    def primitive_of_pool(
        self, limited: bool, packed: Md | None, warns: bool = True
    ) -> Primitive | None:
        """Create the primitive for the threads of the calling thread's pool; see `create`."""
        low, high = self.attrs["low"], self.attrs["high"]
        x, y = self._ends
        operands = ((binding.BINARY_ADD, y),) if self.attrs["residual"] else ()
        post = PostOps(operands)
        if limited and low == 0.0 and high == inf:
            post = PostOps(operands, activation=binding.RELU)
        elif limited:
            post = PostOps(operands, activation=binding.CLIP, alpha=low, beta=high)
        vector = self._vector if self.attrs["bias"] else library().ffi.NULL
        geometry = Geometry(self.attrs, self.x[1:3], self.y[1:3])
        return create(
            "convolution_forward", binding.FORWARD_INFERENCE, binding.CONVOLUTION_DIRECT, x,
            packed or any_layout(self.sizes, self.dtype), vector, y, *geometry.arguments,
            post=post, math=self.attrs["math"], warns=warns,
        )  # fmt: skip

    def recipe(self, limited: bool, packed: Md | None = None) -> Recipe | None:
        """Return the recipe of the primitive on the inputs of the op."""
        made = self.primitive(limited, packed)
        return None if made is None else self.with_operands(made)

    def with_operands(self, made: Primitive) -> Recipe:
        """Return the recipe of a primitive on the inputs of the op."""
        x, y = self._ends
        operands = [
            Operand("src", 0, x), Operand("weights", 1, made.md("weights")),
            Operand("dst", 0, y, True),
        ]  # fmt: skip
        if self.attrs["bias"]:
            operands.append(Operand("bias", 3, self._vector))
        if self.attrs["residual"]:
            operands.append(Operand("operand 0", 3 + self.attrs["bias"], y))
        return Recipe(made, tuple(operands))


def packed_size(attrs: dict[str, AttrValue], filters: TensorType) -> int | None:
    """Return the number of elements of packed weights; None if no primitive packs them."""
    if not compiler.available() or filters.dtype.name not in product_types():
        return None
    conv = PackedConv.of(attrs, filters)
    made = conv.primitive(conv.limited)
    return None if made is None else nbytes(made.md("weights")) // filters.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Packing:
    """The reorder of weights to the layout of a primitive, and their norms."""

    reorder: Recipe
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the reorder's workspace."""
        return self.reorder.workspace

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches of the reorder and of the norms of weights and bias."""
        filters, *bias = ctx.inputs
        added = pointer(bias[0], "void *") if bias else null()
        norms = call(
            "filter_norms", pointer(filters, "void *"), added, pointer(ctx.outputs[1]),
            len(filters), filters.size // len(filters), filters.dtype != np.float32,
        )  # fmt: skip
        return [*self.reorder.bind(ctx), norms]


def _build_pack(p: Problem) -> Packing | None:
    conv = PackedConv.of(p.attrs, p.inputs[0])
    product = conv.primitive(conv.limited)
    if product is None:
        return None
    target = product.md("weights")
    operands = (Operand("src", 0, conv.given), Operand("dst", 0, target, True))
    made = recipe(create("reorder", conv.given, target), operands)
    return None if made is None else Packing(made)


@dataclass(frozen=True, slots=True)
class BoundedConv:
    """A convolution that bounds its result; if the result is limited, it propagates NaN."""

    fast: Recipe  # the convolution with the limit, for numbers whose products are finite
    exact: Recipe | None  # convolution without the limit, which a loop applies; None without limits
    attrs: dict[str, AttrValue]
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the larger one of the two workspaces."""
        return max(r.workspace for r in (self.fast, self.exact) if r is not None)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launch, which selects one of the recipes."""
        (y, bound), norms = ctx.outputs, ctx.inputs[2]
        low, high = self.attrs["low"], self.attrs["high"]
        exact = fast = self.fast.bind(ctx)
        if self.exact is not None:
            exact = [*self.exact.bind(ctx), _clip(y, low, high)]
        arrays, known = zip(*self._ends(ctx.inputs), strict=True)
        return [
            choice(
                "run_bounded", bounded(arrays, known), len(arrays), pointer(norms), pointer(bound),
                max(abs(low), abs(high)), fast=fast, exact=exact,
            )
        ]  # fmt: skip

    def _ends(self, inputs: Sequence[Array]) -> Iterator[tuple[Array | None, Array | None]]:
        """Yield the image and the residual, None if not needed, and the bounds that ops compute."""
        rest = iter(inputs[3 + self.attrs["bias"] :])
        images = [inputs[0], *([next(rest)] if self.attrs["residual"] else [])]
        for x, given in zip(images, ("bounded", "residual_bounded"), strict=False):
            yield None if self.exact is None else x, next(rest) if self.attrs[given] else None


def _clip(y: Array, low: float, high: float) -> Call:
    """Return a launch that limits numbers in place and propagates NaN."""
    half = y.dtype != np.float32
    numbers = pointer(y, "uint16_t *" if half else "float *")
    return call("clip_inplace" + "_bf16" * half, numbers, y.size, low, high)


def _build_product(p: Problem) -> BoundedConv | None:
    conv = PackedConv.of(p.attrs, tensor_type(p.attrs["filters"], p.inputs[0].dtype))
    fast = conv.recipe(conv.limited)
    if fast is None or not conv.limited:
        return None if fast is None else BoundedConv(fast, None, p.attrs)
    exact = conv.recipe(False, fast.primitive.md("weights"))
    return None if exact is None else BoundedConv(fast, exact, p.attrs)


def _accepts(query: KernelQuery) -> bool:
    return query.inputs[0].dtype.name in product_types()


KERNELS: tuple[KernelSpec, ...] = (
    kernel(PACK, _build_pack, accepts=_accepts),
    kernel(PRODUCT, _build_product, accepts=_accepts),
)
