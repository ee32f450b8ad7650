"""Matrix products and bias addition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import checked_axis, floating, nondecreasing, signatures
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signatures

MATMUL_ATTRS = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}


def _product(ctx: InferContext) -> tuple[TensorType, ...]:
    """Infer (..., m, k) x (..., k, n) -> (..., m, n), where operands are transposed first if
    requested.
    """
    a, b = ctx.inputs
    ctx.check(a.dtype is b.dtype, f"{a} and {b}", "one element type", "flow.cast one of the inputs")
    ctx.check(a.dtype.kind != "b", f"{a}", "numbers", "cast it first: flow.cast(x, flow.float)")
    m, k = _matrix(a.shape, ctx.attrs["transpose_a"])
    k_b, n = _matrix(b.shape, ctx.attrs["transpose_b"])
    if k != k_b:
        flags = f"transpose_a={ctx.attrs['transpose_a']}, transpose_b={ctx.attrs['transpose_b']}"
        ctx.fail(
            f"{a} and {b} with {flags}: inner sizes {k} and {k_b}",
            "equal inner sizes: (..., m, k) and (..., k, n)",
            "transpose_a=True or transpose_b=True swaps the last two axes of an operand",
        )
    _check_alpha(ctx, a)
    return (tensor_type((*a.shape[:-2], m, n), a.dtype),)


def _matrix(shape: tuple[int, ...], transpose: AttrValue) -> tuple[int, int]:
    rows, columns = shape[-2:]
    return (columns, rows) if transpose else (rows, columns)


def _check_alpha(ctx: InferContext, a: TensorType) -> None:
    alpha = ctx.attrs["alpha"]
    ctx.check(
        a.dtype.is_floating or alpha == int(alpha),
        f"alpha={alpha} for {a.dtype}",
        "an integer for integer matrices",
    )


def _axes(rank: int, transpose: AttrValue) -> tuple[int, int]:
    return (rank - 1, rank - 2) if transpose else (rank - 2, rank - 1)


def matmul_reference(
    a: Array, b: Array, *, transpose_a: bool, transpose_b: bool, alpha: float
) -> Any:
    """Return the product of two matrices, or of each pair in two stacks."""
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    product = np.matmul(left, right)
    return product if alpha == 1 else product * np.array(alpha).astype(product.dtype)


def _operands(
    rng: np.random.Generator, batch: tuple[int, ...], mkn: tuple[int, int, int], t: int
) -> Any:
    m, k, n = mkn
    a = rng.uniform(-1, 1, (*batch, *((k, m) if t & 1 else (m, k))))
    b = rng.uniform(-1, 1, (*batch, *((n, k) if t & 2 else (k, n))))
    return a, b


class Product(OpDef):
    """A product of matrices; ``batches`` has the leading axes of its samples."""

    attrs = MATMUL_ATTRS
    batches: tuple[tuple[int, ...], ...] = ((),)

    def infer(self, ctx: InferContext) -> Types:
        a, b = ctx.inputs
        ctx.check(
            len(a.shape) == len(b.shape) == 2,
            f"{a} and {b}",
            "two matrices",
            "flow.matmul also takes stacks of matrices with equal leading axes",
        )
        return _product(ctx)

    def samples(self, rng: Rng) -> Samples:
        for batch in self.batches:
            for t in range(4):
                flags = {"transpose_a": bool(t & 1), "transpose_b": bool(t & 2)}
                yield Sample(_operands(rng, batch, (3, 5, 4), t), flags)
            yield Sample(_operands(rng, batch, (1, 7, 1), 0), {"alpha": -0.5}, note="dot, scaled")
            yield Sample(_operands(rng, batch, (2, 1, 3), 1), {"transpose_a": True}, note="outer")
            yield Sample(_operands(rng, batch, (2, 0, 3), 0), gradient=False, note="no terms")
            yield Sample(_operands(rng, batch, (0, 2, 3), 0), gradient=False, note="no rows")
            whole = rng.integers(-4, 5, (2, *batch, 3, 3))
            yield Sample((whole[0], whole[1]), {"alpha": 2.0}, gradient=False, note="int64")

    def work(self, ctx: SbpContext) -> float:
        a, transposed = ctx.inputs[0].shape, ctx.attrs["transpose_a"]
        return 2.0 * ctx.outputs[0].size * a[-2 if transposed else -1]


class Matmul(Product):
    """alpha op(a) op(b) of two matrices, where op is an optional transposition."""

    schema = "matmul(a, b) -> out"
    reference = staticmethod(matmul_reference)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split m, n, k or a batch axis, or pass P, since a product is linear in each operand."""
        rank = len(ctx.inputs[0].shape)
        m, k_a = _axes(rank, ctx.attrs["transpose_a"])
        k_b, n = _axes(rank, ctx.attrs["transpose_b"])
        return signatures(
            *(((S(i), S(i)), S(i)) for i in range(rank - 2)),
            ((S(m), B), S(rank - 2)),
            ((B, S(n)), S(rank - 1)),
            ((S(k_a), S(k_b)), P),
            ((P, B), P),
            ((B, P), P),
        )

    def gradient(self, g: GradContext) -> Gradients:
        """Emit dA = dY op(B)^T and dB = op(A)^T dY, or their transposes if A or B is transposed."""
        (a, b), t_a, t_b = g.inputs, g.attrs["transpose_a"], g.attrs["transpose_b"]
        left = (b, g.dy, t_b, True) if t_a else (g.dy, b, False, not t_b)
        right = (g.dy, a, True, t_a) if t_b else (a, g.dy, not t_a, False)
        rows = zip(g.needed, (left, right), strict=True)
        return [self._multiply(g, *row) if needed else None for needed, row in rows]

    def _multiply(
        self, g: GradContext, a: Sym, b: Sym, transpose_a: bool, transpose_b: bool
    ) -> Sym:
        flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        return g.one(self.type, a, b, **flags, alpha=g.attrs["alpha"])


class BatchMatmul(Matmul):
    """`matmul` of each pair in two stacks of matrices."""

    schema = "batch_matmul(a, b) -> out"
    batches = ((2,), (2, 3))

    def infer(self, ctx: InferContext) -> Types:
        a, b = ctx.inputs
        ctx.check(
            len(a.shape) >= 2 and len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2],
            f"{a} and {b}",
            "stacks of matrices with equal leading axes",
            "repeat the smaller operand first: flow.broadcast_like",
        )
        return _product(ctx)


class MatmulOnto(Product):
    """base plus the `matmul` of a and b, which is rounded before it is added."""

    schema = "matmul_onto(a, b, base) -> out"
    inplace = (2,)
    internal = True
    reference = staticmethod(lambda a, b, base, **attrs: base + matmul_reference(a, b, **attrs))

    def infer(self, ctx: InferContext) -> Types:
        *operands, base = ctx.inputs
        (product,) = super().infer(replace(ctx, inputs=tuple(operands)))
        ctx.check(base == product, f"{base} for a product of type {product}", str(product))
        return (product,)

    def samples(self, rng: Rng) -> Samples:
        for sample in super().samples(rng):
            product = matmul_reference(*sample.inputs, **{**MATMUL_ATTRS, **sample.attrs})
            base = rng.uniform(-2, 2, product.shape).astype(product.dtype)
            yield replace(sample, inputs=(*sample.inputs, base), gradient=False)


def bias_axis(rank: int, attrs: AttrValue) -> int:
    """Return the non-negative axis of the bias of a ``bias_add``."""
    axis: int = attrs["axis"]
    return axis % rank


class BiasAdd(OpDef):
    """a plus a vector b along one axis."""

    schema = "bias_add(a, b) -> out"
    attrs = {"axis": REQUIRED}
    inplace = (0,)

    def infer(self, ctx: InferContext) -> Types:
        a, b = ctx.inputs
        axis = checked_axis(ctx, ctx.attrs["axis"], len(a.shape))
        ctx.check(a.dtype is b.dtype, f"{a} and a bias {b}", "one element type")
        ctx.check(a.dtype.kind != "b", f"{a}", "numbers")
        ctx.check(
            b.shape == (a.shape[axis],),
            f"a bias of shape {b.shape} for axis {axis} of {a}",
            f"a bias of shape ({a.shape[axis]},)",
        )
        return (a,)

    def sbp(self, ctx: SbpContext) -> Signatures:
        rank = len(ctx.inputs[0].shape)
        axis = bias_axis(rank, ctx.attrs)
        rows = (((S(i), S(0) if i == axis else B), S(i)) for i in range(rank))
        ordered = (*nondecreasing(ctx, 0), *nondecreasing(ctx, 1)) if floating(ctx) else ()
        return signatures(*rows, ((P, P), P), *ordered)

    def gradient(self, g: GradContext) -> Gradients:
        rank = len(g.x.shape)
        others = tuple(i for i in range(rank) if i != bias_axis(rank, g.attrs))
        if not g.needed[1]:
            return g.dy, None
        return g.dy, g.one("reduce_sum", g.dy, axis=others, keepdims=False) if others else g.dy

    def reference(self, a: Array, b: Array, *, axis: int) -> Any:
        shape = [1] * np.ndim(a)
        shape[axis] = -1
        return a + np.reshape(b, shape)

    def samples(self, rng: Rng) -> Samples:
        cases = ((3, 5), 1), ((2, 3, 4, 1), 1), ((2, 3, 5), -1), ((4, 3), 0), ((6,), 0), ((0, 3), 1)
        for shape, axis in cases:
            arrays = rng.uniform(-2, 2, shape), rng.uniform(-2, 2, shape[axis])
            yield Sample(arrays, {"axis": axis}, gradient=shape[0] > 0)
        whole = rng.integers(-9, 9, (4, 3)).astype(np.int32)
        yield Sample((whole, whole[0]), {"axis": 1}, gradient=False, note="int32")


OPS = specs(Matmul, MatmulOnto, BatchMatmul, BiasAdd)
