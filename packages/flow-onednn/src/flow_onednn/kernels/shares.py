"""Matrix products that are cut into shares, each of which one thread does.

The library shares a product out as suits this product alone.  Weights that two cores have updated
lie half in the cache of each; where a thread meets other rows of them than it has updated, they
come from the other core.  Here each thread multiplies by the rows that the loops of updates and the
gradients' products give it, too: along the sum, whose parts are added up in order, or, where the
weights are transposed, along the columns of the result.  100 x 784 x 512 takes 260 us so, 310 us as
the library shares it out.

Products of few results with long sums are cut along these, too: the library would do the same, but
into as many shares as there are threads, on which the bits then depend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_core.plugins.rows import of_first
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_core.plugins.trials import agree, factors, multiplications
from flow_onednn import threads
from flow_onednn.kernels import matmul
from flow_onednn.kernels.guarded import guarded
from flow_onednn.kernels.loops import FLOAT_BYTES, null, pointer
from flow_onednn.kernels.matmul import ACTIVATIONS, Matrix, Span, matrix
from flow_onednn.kernels.upcast import product
from flow_onednn.library import Library, library, state
from flow_onednn.native import compiler
from flow_onednn.primitives import (
    PostOps,
    Prepared,
    Primitive,
    address,
    create,
    failed,
    plain,
    prepared,
)
from flow_onednn.recipes import Cooked, Operand, Problem, Recipe, is_float32, problem, recipe

FEW, LEAST = 256, 256
"""Rows up to which it can pay, and rows or columns of the weights that are a part worth having."""
SMALL = 1 << 19
"""Bytes of weights below which it does not matter who has them."""
DEEP = 1 << 12
"""Elements from which on a sum is shared out, whatever the rows."""
LARGEST = 1 << 20
"""Bytes of a result up to which parts make all of it, and together no more than the weights are."""
WIDER, SHALLOW = 24, 512
"""How many times as many columns as rows the result must have to be shared out along them, and how
long its sums may be: the library copies transposed weights, which it does well by itself else."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a product that run at the same time, each in one thread.

    Attributes:
        parts: a primitive per thread, made for a single one.
        sums: rows and columns of the result where all parts make all of it, to be added up.
        bias: position of what is added to each row of a sum among the inputs, None for nothing.
        relu: whether a sum is cut off at 0.
    """

    parts: tuple[Recipe, ...]
    sums: tuple[int, int] | None = None
    bias: int | None = None
    relu: bool = False

    @property
    def workspace(self) -> int:
        """Bytes for the sums of all parts but the first, and for what primitives need."""
        return aligned(self._bytes) + sum(aligned(r.primitive.scratchpad) for r in self.parts)

    @property
    def _bytes(self) -> int:
        return self._each * (len(self.parts) - 1)

    @property
    def _each(self) -> int:
        """Bytes of the sums of a part."""
        return 0 if self.sums is None else FLOAT_BYTES * self.sums[0] * self.sums[1]

    @property
    def reorders(self) -> int:
        """Nothing is copied into another layout."""
        return 0

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return any(r.allocates for r in self.parts)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launch of all parts."""
        with threads.alone():
            ready = list(self._prepared(ctx))
        return [at_once(partial(self._call, ctx), self.parts[0].primitive, ready)]

    def _prepared(self, ctx: BindContext) -> Iterator[Prepared]:
        """The primitives on the op's arrays, their own sums and scratchpads."""
        at = 0 if ctx.workspace is None else address(ctx.workspace)
        scratch = at + aligned(self._bytes)
        for number, part in enumerate(self.parts):
            tensors = {o.role: (o.md, _address(ctx, o)) for o in part.operands}
            if self.sums and number:
                tensors["dst"] = (tensors["dst"][0], at + self._each * (number - 1))
            yield prepared(part.primitive, tensors, scratch)
            scratch += aligned(part.primitive.scratchpad)

    def _call(self, ctx: BindContext, *parts: Any) -> Callable[[], int]:
        """What runs the parts, and gives 0 or the status of those that failed."""
        lib, (y,) = compiler.native(), ctx.outputs
        if self.sums is None:
            return partial(lib.run_parts, *parts)
        bias = null() if self.bias is None else pointer(ctx.inputs[self.bias])
        return partial(
            lib.run_sums, *parts, pointer(y), pointer(ctx.workspace), bias, *self.sums, self.relu
        )


def _address(ctx: BindContext, operand: Operand) -> int:
    arrays = ctx.outputs if operand.result else ctx.inputs
    return address(arrays[operand.index]) + operand.offset


def at_once(
    call: Callable[..., Callable[[], int]], primitive: Primitive, ready: Sequence[Prepared]
) -> Launch:
    """The launch of primitives of one thread each, which `call` makes of what C wants to know."""
    one = library()
    table = compiler.ffi(compiler.CDEF).new("Part[]", len(ready))
    for row, part in zip(table, ready, strict=True):
        row.primitive, row.arguments = _opaque(part.primitive), _opaque(part.arguments)
        row.count = part.count
    where = (_opaque(one.lib.dnnl_primitive_execute), _opaque(one.stream))
    return _checked(call(*where, table, len(ready)), primitive, ready)


def _opaque(pointer_: Any) -> Any:
    """A pointer of the library's declarations as one of ours."""
    number = int(library().ffi.cast("uintptr_t", pointer_))
    return compiler.ffi(compiler.CDEF).cast("void *", number)


def _checked(call: Callable[[], int], primitive: Primitive, kept: object) -> Launch:
    """A launch that raises what goes wrong, and keeps alive what it knows the addresses of."""

    def run(keep: object = kept) -> None:
        status = call()
        if status:
            failed(primitive, status)

    return run


def cook(p: Problem) -> Cooked | None:
    """The recipe of ``matmul`` and ``onednn_matmul``: shared out by us where that pays."""
    return _shares(p) or matmul.cook(p)


def _shares(p: Problem) -> Shares | None:
    if not here():
        return None
    a, b = (matrix(t, p.attrs[f"transpose_{k}"]) for t, k in zip(p.inputs, "ab", strict=False))
    along = _by_columns if p.attrs["transpose_b"] else _by_sums
    with threads.alone():
        if _few(p):
            return along(p, a, b)
        return _by_sums(p, a, b) if _deep(p, a, b) else None


def here() -> bool:
    """Whether threads of ours can run the library's primitives."""
    found = state()
    return isinstance(found, Library) and found.shares and compiler.available()


def _few(p: Problem) -> bool:
    """Whether it is a product of few rows by a plain matrix."""
    a, b = p.inputs[:2]
    matrices = len(a.shape) == len(b.shape) == 2 and a.dtype.name == "float32"
    return matrices and not p.attrs["transpose_a"] and a.shape[0] <= FEW and b.nbytes >= SMALL


def _deep(p: Problem, a: Matrix, b: Matrix) -> bool:
    """Whether it is a product of two matrices with long sums and few results."""
    matrices = len(a.shape) == len(b.shape) == 2 and a.dtype == b.dtype == "float32"
    plain_sum = not p.attrs.get("accumulate") and p.outputs[0].dtype.name == "float32"
    return matrices and plain_sum and a.shape[1] >= DEEP


def _spans(size: int, least: int, most: int = threads.SHARES) -> list[Span]:
    """Equal parts of a size, none where they would be too small."""
    count = threads.shares(min(size, most * least), least)
    if count == 1:
        return []
    step = -(-size // count // 16) * 16
    return [(low, min(low + step, size)) for low in range(0, size, step)]


def _by_sums(p: Problem, a: Matrix, b: Matrix) -> Shares | None:
    """Each part makes all of the result, from some of the rows of the weights."""
    (rows, deep), columns = a.shape, b.shape[-1]
    relu = {"": False, "relu": True}.get(str(p.attrs.get("activation", "")))
    most = 1 + LARGEST // (FLOAT_BYTES * max(1, rows * columns))  # so that all sums stay near
    spans = _spans(deep, LEAST if deep < DEEP else DEEP // 4, most)
    large = FLOAT_BYTES * rows * columns > LARGEST
    if relu is None or p.attrs["alpha"] != 1.0 or large or not spans:
        return None
    dst = Operand("dst", 0, Matrix((rows, columns), (columns, 1)).md, True)
    parts = [_part(p, a.part(-1, s), b.part(-2, s), dst, PostOps()) for s in spans]
    bias = 2 if len(p.inputs) == 3 else None
    return _shared(parts, (rows, columns), bias, relu)


def _by_columns(p: Problem, a: Matrix, b: Matrix) -> Shares | None:
    """Each part makes some columns of the result."""
    (rows, deep), columns = a.shape, b.shape[-1]
    if deep > SHALLOW or columns < WIDER * rows:
        return None
    if len(p.inputs) == 3 and p.attrs["alpha"] != 1.0:
        return None  # the library would scale the bias, too
    whole = Matrix((rows, columns), (columns, 1))
    activation = ACTIVATIONS[p.attrs.get("activation", "")]
    post = PostOps(scale=p.attrs["alpha"], activation=activation)
    parts = []
    for span in _spans(columns, LEAST):
        c, at = whole.part(-1, span)
        dst = Operand("dst", 0, c.md, True, at)
        parts.append(_part(p, (a, 0), b.part(-1, span), dst, post, len(p.inputs) == 3))
    return _shared(parts)


def _part(
    p: Problem,
    a: tuple[Matrix, int],
    b: tuple[Matrix, int],
    dst: Operand,
    post: PostOps,
    adds_bias: bool = False,
) -> Recipe | None:
    """One primitive; the bias is in it where it finishes its columns."""
    (left, at_left), (right, at_right) = a, b
    operands = [
        Operand("src", 0, left.md, offset=at_left),
        Operand("weights", 1, right.md, offset=at_right),
        dst,
    ]
    bias = library().ffi.NULL
    if adds_bias:
        bias = plain((1, right.shape[-1]), "float32")
        operands.append(Operand("bias", 2, bias, offset=dst.offset))
    math = str(p.attrs.get("math", ""))
    return recipe(create("matmul", left.md, right.md, bias, dst.md, post=post, math=math), operands)


def _shared(
    parts: Sequence[Recipe | None],
    sums: tuple[int, int] | None = None,
    bias: int | None = None,
    relu: bool = False,
) -> Shares | None:
    made = tuple(r for r in parts if r is not None)
    return Shares(made, sums, bias, relu) if made and len(made) == len(parts) else None


def same_rows(whole: KernelQuery, parts: Sequence[KernelQuery]) -> bool:
    """Whether rows by one right side have the same bits at once as in parts: it is tried out."""
    fits = is_float32(whole) and of_first(whole, parts) and not whole.attrs["transpose_a"]
    return fits and _tried(threads.count(), problem(whole), tuple(map(problem, parts)))


@lru_cache(maxsize=4096)
def _tried(count: int, whole: Problem, parts: tuple[Problem, ...]) -> bool:
    """With so many threads."""
    transposed = whole.attrs["transpose_b"]
    ends = np.cumsum([p.inputs[0].shape[0] for p in parts])[:-1]

    def same(rng: np.random.Generator) -> bool:
        a, b = factors(rng, whole.inputs[:2], False, transposed)
        others = [b, *(rng.standard_normal(t.shape, np.float32) for t in whole.inputs[2:])]
        rows = zip(parts, np.split(a, ends), strict=True)
        wanted = [matmul.run(cook(p), p, (part, *others)) for p, part in rows]
        found = matmul.run(cook(whole), whole, (a, *others))
        return (
            found is not None
            and all(w is not None for w in wanted)
            and np.array_equal(found, np.concatenate(wanted))
        )

    return agree(multiplications(whole.inputs[:2], transposed), same)


def _adds_up(made: Cooked) -> bool:
    """Whether parts are added up by a loop of ours, which applies relu, too."""
    return isinstance(made, Shares) and made.sums is not None


KERNELS: tuple[KernelSpec, ...] = tuple(
    replace(product(op, guarded(cook, _adds_up)), rows=same_rows)
    for op in ("matmul", "onednn_matmul")
)
