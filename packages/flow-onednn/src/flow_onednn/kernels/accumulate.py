"""Matrix products that one primitive computes and adds to its destination.

The result of `matmul_onto` must have the bits of a rounded product and a separate addition. An
accumulating primitive has these bits if it keeps each sum of products in registers until the sum is
complete. The library does not document whether it does, so trial runs on operands of the same
shapes decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import (
    Launch,
    bitwise_equal_in_trials,
    canceling_operands,
    multiplications,
)
from flow_core.authoring.specs import Attrs, BindContext, KernelQuery, KernelSpec
from flow_onednn.kernels.matmul import DEEP, build
from flow_onednn.library import library
from flow_onednn.primitives import PostOps, address, create
from flow_onednn.recipes import Implementation, Problem, Recipe, RecipeSequence, is_float32, kernel

ONTO, BASE = "matmul_onto", 2


@dataclass(frozen=True, slots=True)
class Accumulating(RecipeSequence):
    """Recipes that accumulate into their output, after the other summand is copied to it."""

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches on the op's arrays."""
        base, (out,) = ctx.inputs[BASE], ctx.outputs
        launches = RecipeSequence.bind(self, ctx)
        in_place = address(base) == address(out)
        return launches if in_place else [partial(np.copyto, out, base), *launches]


def build_accumulating(p: Problem) -> Implementation | None:
    """Build ``matmul_onto`` if its result has the bits of a separate product and addition.

    Products with long sums are rejected: they are tiled along the sums, and the separate addition
    takes negligible time.
    """
    plain = replace(p, op="matmul", inputs=p.inputs[:BASE])
    deep = p.inputs[0].shape[0 if p.attrs["transpose_a"] else 1]
    product = build(plain) if deep < DEEP and p.attrs["alpha"] == 1.0 else None
    if not isinstance(product, Recipe | RecipeSequence):
        return None
    apart = RecipeSequence((product,)) if isinstance(product, Recipe) else product
    recipes = [_adding(r, p) for r in apart.recipes]
    adding = RecipeSequence(tuple(r for r in recipes if r is not None))
    if len(adding.recipes) < len(recipes) or apart.reorders or adding.reorders:
        return None
    return Accumulating(adding.recipes) if _same_bits(plain, apart, adding) else None


def _adding(recipe: Recipe, p: Problem) -> Recipe | None:
    """Build the same product with a primitive that accumulates into its destination."""
    src, weights, dst = (
        next(o.md for o in recipe.operands if o.role == role) for role in ("src", "weights", "dst")
    )
    post, math = PostOps(accumulate=True), str(p.attrs.get("math", ""))
    null = library().ffi.NULL
    made = create("matmul", src, weights, null, dst, post=post, math=math)
    return None if made is None else Recipe(made, recipe.operands)


def _same_bits(p: Problem, apart: RecipeSequence, adding: RecipeSequence) -> bool:
    turned = p.attrs["transpose_a"], p.attrs["transpose_b"]

    def same(rng: np.random.Generator) -> bool:
        operands = list(canceling_operands(rng, p.inputs, *turned))
        base = rng.standard_normal(p.outputs[0].shape, np.float32)
        product = np.empty_like(base)
        expected = base.copy()
        _run(p, apart, operands, product)
        expected += product
        _run(p, adding, operands, base)
        return np.array_equal(base, expected)

    return bitwise_equal_in_trials(multiplications(p.inputs, turned[1]), same)


def _run(p: Problem, product: RecipeSequence, operands: list[Any], out: Any) -> None:
    query = KernelQuery(p.op, Attrs(p.attrs), p.inputs, p.outputs)
    workspace = np.empty(product.workspace, np.uint8)
    for launch in product.bind(BindContext(query, tuple(operands), (out,), workspace)):
        launch()


KERNELS: tuple[KernelSpec, ...] = (kernel(ONTO, build_accumulating, accepts=is_float32),)
