"""SGD with a gradient that is a sum of matrix products.

The products of several devices that share memory accumulate in scratch memory. The primitive of the
last product adds this sum, multiplies by the negative learning rate and accumulates into the
variable. Trial runs check that the bits are those of separate products, sum and update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from flow_core.authoring.backends import (
    Launch,
    bitwise_equal_in_trials,
    canceling_operands,
    multiplications,
)
from flow_core.authoring.specs import Attrs, BindContext, KernelQuery, KernelSpec
from flow_core.authoring.update_rules import BY_TYPE, TABLE
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_onednn import binding
from flow_onednn.kernels import matmul
from flow_onednn.kernels.loops import null, pointer, pointers, update_numbers
from flow_onednn.kernels.matmul import DEEP
from flow_onednn.library import library
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import Md, PostOps, Primitive, Tensor, address, create, launch, plain
from flow_onednn.recipes import Problem, Recipe, is_float32, kernel

OP = "summed_sgd_update"
SGD = BY_TYPE["sgd_update"]
NUMBER = aligned(4)
PRODUCT = ("transpose_a", "transpose_b", "alpha")
PLAIN = ("l1", "l2", "weight_decay")
"""Attributes that must be 0: the factors of the update's regularization terms."""


@dataclass(frozen=True, slots=True)
class SummedSgd:
    """The implementation of ``summed_sgd_update``."""

    # Primitives of the products: ``first`` writes the sum, ``adding`` accumulates into the sum,
    # ``last`` updates the variable.
    first: Primitive
    adding: Primitive
    last: Primitive
    left: Md  # descriptors of the operands and the result of a product
    right: Md
    total: Md
    nbytes: int  # size of the sum in bytes

    @property
    def workspace(self) -> int:
        """Bytes for the sum, the learning rate and the largest scratchpad."""
        used = (p.scratchpad for p in (self.first, self.adding, self.last))
        return aligned(self.nbytes) + NUMBER + max(used)

    @property
    def reorders(self) -> int:
        """Bytes copied between layouts at each launch: always 0."""
        return 0

    @property
    def allocates(self) -> bool:
        """Whether the library allocates memory at each launch: always False."""
        return False

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches: the learning rate, then the products."""
        parts = ctx.attrs["parts"]
        model, rate, *rest = ctx.inputs
        operands, factor = rest[-2 * parts :], rest[: -2 * parts]
        at = address(ctx.workspace)
        number, scratch = at + aligned(self.nbytes), at + aligned(self.nbytes) + NUMBER
        launches: list[Launch] = [_rate(ctx, rate, factor, number)]
        whole: dict[str, Tensor] = {"operand 0": (self.total, at), "operand 1": (_one(), number)}
        for k in range(parts):
            a, b = map(address, operands[2 * k : 2 * k + 2])
            ends = k == parts - 1
            product = self.last if ends else self.adding if k else self.first
            tensors: dict[str, Tensor] = {
                "src": (self.left, a),
                "weights": (self.right, b),
                "dst": (self.total, address(model) if ends else at),
                **(whole if ends else {}),
            }
            launches.append(launch(product, tensors, scratch))
        return launches


ONE = np.ones(1, np.float32)


def _rate(ctx: BindContext, rate: Array, factor: Sequence[Array], at: int) -> Launch:
    """Return a launch that writes the factor of the gradient, which is the negative scaled rate."""
    given = pointer(factor[0]) if factor else null()
    number = compiler.ffi(compiler.CDEF).cast("float *", at)
    rest = (pointer(rate), given, 1, ctx.attrs["scale"])
    return call("scale_by_rate", pointer(ONE), number, *rest)


def _one() -> Md:
    return plain((1, 1), "float32")


def build(p: Problem) -> SummedSgd | None:
    """Build ``summed_sgd_update`` if it gives the bits of separate products, sum and update."""
    asked = p.attrs["alpha"] == 1.0 and not any(p.attrs[name] for name in PLAIN)
    made = _made(p) if asked and compiler.available() else None
    return made if made is not None and _same_bits(p, made) else None


def _product(p: Problem) -> Problem:
    items = tuple((name, p.attrs[name]) for name in PRODUCT)
    return Problem("matmul", p.inputs[-2:], p.inputs[:1], items)


def _made(p: Problem) -> SummedSgd | None:
    a, deep = p.inputs[-2], p.inputs[-2].shape[0 if p.attrs["transpose_a"] else 1]
    product = matmul.build(_product(p)) if deep < DEEP and a.size else None
    if not isinstance(product, Recipe) or product.reorders or product.allocates:
        return None
    src, weights, total = (
        next(o.md for o in product.operands if o.role == role) for role in ("src", "weights", "dst")
    )
    last = PostOps(
        operands=((binding.BINARY_ADD, total), (binding.BINARY_MUL, _one())), accumulate=True
    )
    none = library().ffi.NULL
    first, adding, closing = (
        create("matmul", src, weights, none, total, post=post)
        for post in (PostOps(), PostOps(accumulate=True), last)
    )
    if first is None or adding is None or closing is None:
        return None
    if any(Recipe(m, ()).allocates for m in (first, adding, closing)):
        return None  # allocates memory outside the plan
    return SummedSgd(first, adding, closing, src, weights, total, p.inputs[0].nbytes)


def _drawn(p: Problem, rng: np.random.Generator) -> Iterator[Array]:
    """Yield trial data: a variable of both signs, a positive rate and factor, and operands."""
    first = len(p.inputs) - 2 * int(p.attrs["parts"])
    for i, type_ in enumerate(p.inputs[:first]):
        shift = 0.0 if i else 0.5
        yield np.asarray(rng.random(type_.shape, np.float32) - np.float32(shift), np.float32)
    for at in range(first, len(p.inputs), 2):
        pair = p.inputs[at : at + 2]
        yield from canceling_operands(rng, pair, p.attrs["transpose_a"], p.attrs["transpose_b"])


def _same_bits(p: Problem, made: SummedSgd) -> bool:
    """Return whether trial runs give the bits of separate products, sum and update."""
    work = multiplications(p.inputs[-2:], p.attrs["transpose_b"]) * int(p.attrs["parts"])
    return bitwise_equal_in_trials(work, lambda rng: _same(p, made, rng))


def _same(p: Problem, made: SummedSgd, rng: np.random.Generator) -> bool:
    parts, arrays = int(p.attrs["parts"]), list(_drawn(p, rng))
    wanted, query = arrays[0].copy(), KernelQuery(p.op, Attrs(p.attrs), p.inputs, ())
    total = _apart(_product(p), arrays[-2 * parts :])
    rate, *factor = map(pointer, arrays[1 : len(arrays) - 2 * parts])
    compiler.native().update(
        TABLE.index(SGD), pointers(wanted, total), rate, factor[0] if factor else null(), null(),
        null(), wanted.size, 1, update_numbers(SGD, p.attrs),
    )  # fmt: skip
    workspace = np.empty(made.workspace, np.uint8)
    for step in made.bind(BindContext(query, tuple(arrays), (), workspace)):
        step()
    return np.array_equal(arrays[0], wanted)


def _apart(p: Problem, operands: Sequence[Array]) -> Array:
    """Return the sum of separately computed products."""
    pairs = (operands[at : at + 2] for at in range(0, len(operands), 2))
    return reduce(np.add, (matmul.run(matmul.build(p), p, pair) for pair in pairs))


KERNELS: tuple[KernelSpec, ...] = (kernel(OP, build, accepts=is_float32),)
