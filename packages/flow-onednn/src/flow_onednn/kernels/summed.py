"""SGD by a sum of matrix products: the last product is added to the sum and to the variable.

Products of several devices that share a memory are written to a sum in scratch memory and added to
it.  The last one finds the sum complete: it multiplies it by the rate and adds it to the variable,
in one primitive.  Elsewhere products are rounded, added up and then read by an update; whether
the bits are the same is tried out on operands of these shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_core.ir.graph import Attrs
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_core.plugins.trials import agree, factors, multiplications
from flow_onednn import binding
from flow_onednn.kernels import matmul
from flow_onednn.kernels.loops import null, pointer
from flow_onednn.kernels.matmul import DEEP
from flow_onednn.library import library
from flow_onednn.native import compiler
from flow_onednn.primitives import (
    Md,
    PostOps,
    Primitive,
    Tensor,
    address,
    create,
    launch,
    plain,
)
from flow_onednn.recipes import Problem, Recipe, is_float32, kernel

OP = "summed_sgd_update"
NUMBER = aligned(4)
PRODUCT = ("transpose_a", "transpose_b", "alpha")
PLAIN = ("l1", "l2", "weight_decay")
"""What an update has none of if it is the gradient alone that changes the variable."""


@dataclass(frozen=True, slots=True)
class Summed:
    """The recipe.

    Attributes:
        first, adding, last: the products: written to the sum, added to it, and that which adds
            all of it to the variable.
        left, right, total: operands and result as the primitives see them.
        nbytes: of the sum.
    """

    first: Primitive
    adding: Primitive
    last: Primitive
    left: Md
    right: Md
    total: Md
    nbytes: int

    @property
    def workspace(self) -> int:
        """Bytes for the sum, for the rate, and for what the primitives need while they run."""
        used = (p.scratchpad for p in (self.first, self.adding, self.last))
        return aligned(self.nbytes) + NUMBER + max(used)

    @property
    def reorders(self) -> int:
        """Bytes that are copied from one layout to another: none."""
        return 0

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch: no."""
        return False

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches: the rate, then the products."""
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


def _rate(ctx: BindContext, rate: Any, factor: Sequence[Any], at: int) -> Launch:
    """Writes minus the rate, as SGD multiplies the gradient by it."""
    given = pointer(factor[0]) if factor else null()
    number = compiler.ffi(compiler.CDEF).cast("float *", at)
    native: Any = compiler.native()
    return partial(
        native.step_of, pointer(ONE), number, pointer(rate), given, 1, ctx.attrs["scale"]
    )


def _one() -> Md:
    return plain((1, 1), "float32")


def cook(p: Problem) -> Summed | None:
    """The recipe of ``summed_sgd_update``, where the bits are those of what it stands for."""
    asked = p.attrs["alpha"] == 1.0 and not any(p.attrs[name] for name in PLAIN)
    made = _made(p) if asked and compiler.available() else None
    return made if made is not None and _same_bits(p, made) else None


def _product(p: Problem) -> Problem:
    items = tuple((name, p.attrs[name]) for name in PRODUCT)
    return Problem("matmul", p.inputs[-2:], p.inputs[:1], items)


def _made(p: Problem) -> Summed | None:
    a, deep = p.inputs[-2], p.inputs[-2].shape[0 if p.attrs["transpose_a"] else 1]
    product = matmul.cook(_product(p)) if deep < DEEP and a.size else None
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
        return None  # these take memory by themselves
    return Summed(first, adding, closing, src, weights, total, p.inputs[0].nbytes)


def _drawn(p: Problem, rng: np.random.Generator) -> Iterator[Any]:
    """A variable of both signs, a positive rate and factor, and operands."""
    first = len(p.inputs) - 2 * int(p.attrs["parts"])
    for i, type_ in enumerate(p.inputs[:first]):
        shift = 0.0 if i else 0.5
        yield np.asarray(rng.random(type_.shape, np.float32) - np.float32(shift), np.float32)
    for at in range(first, len(p.inputs), 2):
        pair = p.inputs[at : at + 2]
        yield from factors(rng, pair, p.attrs["transpose_a"], p.attrs["transpose_b"])


def _same_bits(p: Problem, made: Summed) -> bool:
    """Whether the variable is what products, their sum and the update make of it, on any draw."""
    work = multiplications(p.inputs[-2:], p.attrs["transpose_b"]) * int(p.attrs["parts"])
    return agree(work, lambda rng: _same(p, made, rng))


def _same(p: Problem, made: Summed, rng: np.random.Generator) -> bool:
    parts, arrays = int(p.attrs["parts"]), list(_drawn(p, rng))
    wanted, query = arrays[0].copy(), KernelQuery(p.op, Attrs(p.attrs), p.inputs, ())
    total = _apart(_product(p), arrays[-2 * parts :])
    rate, *factor = map(pointer, arrays[1 : len(arrays) - 2 * parts])
    compiler.native().sgd(
        pointer(wanted), pointer(total), rate, factor[0] if factor else null(), wanted.size,
        p.attrs["scale"], 0.0, 0.0, 0.0,
    )  # fmt: skip
    workspace = np.empty(made.workspace, np.uint8)
    for step in made.bind(BindContext(query, tuple(arrays), (), workspace)):
        step()
    return np.array_equal(arrays[0], wanted)


def _apart(p: Problem, operands: Sequence[Any]) -> Any:
    """The sum of products that are made one by one."""
    pairs = (operands[at : at + 2] for at in range(0, len(operands), 2))
    return reduce(np.add, (matmul.run(matmul.cook(p), p, pair) for pair in pairs))


KERNELS: tuple[KernelSpec, ...] = (kernel(OP, cook, accepts=is_float32),)
