"""Matrix products partitioned over threads: one single-threaded primitive per partition.

There are three partitionings: split-K (along the sum), split-N (along the result's columns), and
split-M (along its rows).
Invariants:

- The partitions depend on the shapes only, never on the number of threads, and partial sums are
  added in order, so that the bits are the same for any number of threads.
- A partition runs on one thread and takes no memory beyond the planned workspace.
- For products with few rows, a thread multiplies those rows of the weights that it also updates,
  which are in its core's cache. For example, 100 x 784 x 512 takes 260 us, compared to 310 us with
  the library's own partitioning.

Products with long sums are split along K for any number of rows, because the library would split
these sums in a way that depends on the number of threads. Long sums with half results, which the
library keeps in a buffer of float32, are split along M for the same reason: on two threads,
1024 x 3072 x 768 takes 2.2 ms in bfloat16 with AMX, and 5.0 ms on the one thread that computes the
same bits without partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from flow_core.authoring.backends import (
    Launch,
    bitwise_equal_in_trials,
    canceling_operands,
    multiplications,
    rowwise_in_first,
)
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.base.alignment import aligned
from flow_onednn import threads
from flow_onednn.kernels import few_rows, matmul
from flow_onednn.kernels.concurrent import concurrent_launch, supported
from flow_onednn.kernels.loops import FLOAT_BYTES, null, pointer
from flow_onednn.kernels.matmul import ACTIVATIONS, Matrix, Span, matrix
from flow_onednn.kernels.nan_relu import preserve_nan
from flow_onednn.kernels.upcast import is_half, product
from flow_onednn.library import library
from flow_onednn.primitives import BoundPrimitive, PostOps, address, bind_primitive, create, plain
from flow_onednn.recipes import (
    KEPT,
    Implementation,
    Operand,
    Problem,
    Recipe,
    is_float32,
    problem,
    recipe,
)

MAX_ROWS = 256
"""Maximum number of rows of the left operand if a product is partitioned for cache locality."""
MIN_SPAN = 256
"""Minimum number of rows or columns of the weights that a partition has."""
MIN_WEIGHT_BYTES = 1 << 19
"""Minimum size in bytes of weights for which cache locality matters."""
MIN_DEPTH = 1 << 12
"""Minimum length of sums that are split for any number of rows."""
MAX_RESULT_BYTES = 1 << 20
"""Maximum size in bytes of the result of a product that is split along K."""
MIN_ASPECT, MAX_SPLIT_N_DEPTH = 24, 512
"""Minimum ratio of columns to rows, and maximum length of sums, for split-N. The library copies
transposed weights of such shapes, and partitions other shapes well."""
MIN_ROWS = 64
"""Minimum number of rows of a partition for split-M."""


@dataclass(frozen=True, slots=True)
class PartitionedMatmul:
    """A product that several single-threaded primitives compute concurrently."""

    parts: tuple[Recipe, ...]  # one recipe per partition
    # Number of rows and columns of the result for split-K; else None.
    sums: tuple[int, int] | None = None
    # Input position of the bias that is added after split-K; None for no bias.
    bias: int | None = None
    relu: bool = False  # whether relu is applied after split-K

    @property
    def workspace(self) -> int:
        """Bytes for the partial sums of all parts but the first, and for the scratchpads."""
        return aligned(self._bytes) + sum(aligned(r.primitive.scratchpad) for r in self.parts)

    @property
    def _bytes(self) -> int:
        return self._part_bytes * (len(self.parts) - 1)

    @property
    def _part_bytes(self) -> int:
        """Return the bytes of the partial sums that a part computes."""
        return 0 if self.sums is None else FLOAT_BYTES * self.sums[0] * self.sums[1]

    @property
    def reorders(self) -> int:
        """Bytes copied between layouts at each launch: always 0."""
        return 0

    @property
    def allocates(self) -> bool:
        return any(r.allocates for r in self.parts)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launch of all parts."""
        with threads.single_threaded():
            parts = list(self._bound(ctx))
        first = self.parts[0].primitive
        if self.sums is None:
            return [concurrent_launch("run_parts", parts, primitive=first)]
        bias = null() if self.bias is None else pointer(ctx.inputs[self.bias])
        rest = pointer(ctx.outputs[0]), pointer(ctx.workspace), bias, *self.sums, self.relu
        return [concurrent_launch("run_split_k", parts, *rest, primitive=first)]

    def _bound(self, ctx: BindContext) -> Iterator[BoundPrimitive]:
        """Bind the parts to the op's arrays, their partial sums and scratchpads."""
        at = 0 if ctx.workspace is None else address(ctx.workspace)
        scratch = at + aligned(self._bytes)
        for number, part in enumerate(self.parts):
            tensors = {o.role: (o.md, _address(ctx, o)) for o in part.operands}
            if self.sums and number:
                tensors["dst"] = (tensors["dst"][0], at + self._part_bytes * (number - 1))
            yield bind_primitive(part.primitive, tensors, scratch)
            scratch += aligned(part.primitive.scratchpad)


def _address(ctx: BindContext, operand: Operand) -> int:
    arrays = ctx.outputs if operand.result else ctx.inputs
    return address(arrays[operand.index]) + operand.offset


def build(p: Problem) -> Implementation | None:
    """Build ``matmul`` or ``onednn_matmul``, by a C loop or partitioned if that is faster."""
    return few_rows.build(p) or _partitioned(p) or matmul.build(p)


def _partitioned(p: Problem) -> PartitionedMatmul | None:
    if not supported():
        return None
    a, b = (matrix(t, p.attrs[f"transpose_{k}"]) for t, k in zip(p.inputs, "ab", strict=False))
    split = _split_n if p.attrs["transpose_b"] else _split_k
    with threads.single_threaded():
        if _has_few_rows(p):
            return split(p, a, b)
        if is_half(p.outputs[0]):
            return _split_m(p, a, b)
        return _split_k(p, a, b) if _has_long_sums(p, a, b) else None


def _has_few_rows(p: Problem) -> bool:
    """Return whether few float32 rows are multiplied by large weights."""
    a, b = p.inputs[:2]
    matrices = len(a.shape) == len(b.shape) == 2 and a.dtype.name == "float32"
    few = matrices and not p.attrs["transpose_a"] and a.shape[0] <= MAX_ROWS
    return few and b.nbytes >= MIN_WEIGHT_BYTES


def _has_long_sums(p: Problem, a: Matrix, b: Matrix) -> bool:
    """Return whether two float32 matrices are multiplied along a long axis."""
    matrices = len(a.shape) == len(b.shape) == 2 and a.dtype == b.dtype == "float32"
    plain_sum = not p.attrs.get("accumulate") and p.outputs[0].dtype.name == "float32"
    return matrices and plain_sum and a.shape[1] >= MIN_DEPTH


def _spans(size: int, minimum: int, limit: int = threads.MAX_PARTITIONS) -> list[Span]:
    """Cut a size into at most ``limit`` equal spans; return none if they would be too short."""
    count = threads.partition_count(min(size, limit * minimum), minimum)
    if count == 1:
        return []
    step = -(-size // count // 16) * 16
    return [(low, min(low + step, size)) for low in range(0, size, step)]


def _split_k(p: Problem, a: Matrix, b: Matrix) -> PartitionedMatmul | None:
    """Build parts that compute partial sums of the whole result from spans of the weights' rows."""
    (rows, deep), columns = a.shape, b.shape[-1]
    relu = {"": False, "relu": True}.get(str(p.attrs.get("activation", "")))
    result_bytes = FLOAT_BYTES * rows * columns
    limit = 1 + MAX_RESULT_BYTES // max(FLOAT_BYTES, result_bytes)  # partial sums stay in the cache
    spans = _spans(deep, MIN_SPAN if deep < MIN_DEPTH else MIN_DEPTH // 4, limit)
    if relu is None or p.attrs["alpha"] != 1.0 or result_bytes > MAX_RESULT_BYTES or not spans:
        return None
    dst = Operand("dst", 0, Matrix((rows, columns), (columns, 1)).md, True)
    parts = [_part(p, a.part(-1, s), b.part(-2, s), dst, PostOps()) for s in spans]
    bias = 2 if len(p.inputs) == 3 else None
    return _combine(parts, (rows, columns), bias, relu)


def _split_n(p: Problem, a: Matrix, b: Matrix) -> PartitionedMatmul | None:
    """Build parts that each compute a span of the result's columns."""
    (rows, deep), columns = a.shape, b.shape[-1]
    if deep > MAX_SPLIT_N_DEPTH or columns < MIN_ASPECT * rows:
        return None
    if len(p.inputs) == 3 and p.attrs["alpha"] != 1.0:
        return None  # the library would scale the bias as well
    whole = Matrix((rows, columns), (columns, 1))
    activation = ACTIVATIONS[p.attrs.get("activation", "")]
    post = PostOps(scale=p.attrs["alpha"], activation=activation)
    parts = []
    for span in _spans(columns, MIN_SPAN):
        c, at = whole.part(-1, span)
        dst = Operand("dst", 0, c.md, True, at)
        parts.append(_part(p, (a, 0), b.part(-1, span), dst, post, len(p.inputs) == 3))
    return _combine(parts)


def _split_m(p: Problem, a: Matrix, b: Matrix) -> PartitionedMatmul | None:
    """Build parts that each compute a span of the result's rows."""
    if len(a.shape) != 2 or len(b.shape) != 2 or p.attrs.get("accumulate"):
        return None
    if len(p.inputs) == 3 and p.attrs["alpha"] != 1.0:
        return None  # the library would scale the bias as well
    rows, columns = a.shape[0], b.shape[1]
    whole = Matrix((rows, columns), (columns, 1), a.dtype)
    activation = ACTIVATIONS[p.attrs.get("activation", "")]
    post = PostOps(scale=p.attrs["alpha"], activation=activation)

    def part(span: Span, dtype: str = a.dtype) -> Recipe | None:
        c, at = replace(whole, dtype=dtype).part(-2, span)
        dst = Operand("dst", 0, c.md, True, at)
        return _part(p, a.part(-2, span), (b, 0), dst, post, len(p.inputs) == 3)

    return split_rows(rows, part)


def split_rows(rows: int, part: Callable[..., Recipe | None]) -> PartitionedMatmul | None:
    """Split a product along its rows if the library buffers the sums of its half results.

    Args:
        part: builds the product of a span of rows, with results of the given type if there is one.
    """
    with threads.single_threaded():
        half, wide = part((0, rows)), part((0, rows), "float32")
        if half is None or wide is None or half.primitive.scratchpad <= wide.primitive.scratchpad:
            return None
        parts = [part(span) for span in _spans(rows, MIN_ROWS)]
    return None if any(r is not None and r.reorders for r in parts) else _combine(parts)


def _part(
    p: Problem,
    a: tuple[Matrix, int],
    b: tuple[Matrix, int],
    dst: Operand,
    post: PostOps,
    adds_bias: bool = False,
) -> Recipe | None:
    """Build the primitive of a partition; it adds the bias if the partition computes full sums."""
    (left, at_left), (right, at_right) = a, b
    operands = [
        Operand("src", 0, left.md, offset=at_left),
        Operand("weights", 1, right.md, offset=at_right),
        dst,
    ]
    bias = library().ffi.NULL
    if adds_bias:
        bias = plain((1, right.shape[-1]), right.dtype)
        at_bias = dst.offset if right.shape[-1] < p.outputs[0].shape[-1] else 0
        operands.append(Operand("bias", 2, bias, offset=at_bias))
    math = str(p.attrs.get("math", ""))
    return recipe(create("matmul", left.md, right.md, bias, dst.md, post=post, math=math), operands)


def _combine(
    parts: Sequence[Recipe | None],
    sums: tuple[int, int] | None = None,
    bias: int | None = None,
    relu: bool = False,
) -> PartitionedMatmul | None:
    made = tuple(r for r in parts if r is not None)
    complete = made and len(made) == len(parts)
    return PartitionedMatmul(made, sums, bias, relu) if complete else None


def same_rows(whole: KernelQuery, parts: Sequence[KernelQuery]) -> bool:
    """Return whether a product is bit-identical to the products of groups of its rows.

    Trial runs decide this.
    """
    fits = is_float32(whole) and rowwise_in_first(whole, parts) and not whole.attrs["transpose_a"]
    return fits and _trial_agrees(threads.count(), problem(whole), tuple(map(problem, parts)))


@lru_cache(maxsize=KEPT)
def _trial_agrees(count: int, whole: Problem, parts: tuple[Problem, ...]) -> bool:
    """Compare both ways on trial data; ``count``, the number of threads, is only a cache key."""
    transposed = whole.attrs["transpose_b"]
    ends = np.cumsum([p.inputs[0].shape[0] for p in parts])[:-1]

    def same(rng: np.random.Generator) -> bool:
        a, b = canceling_operands(rng, whole.inputs[:2], False, transposed)
        others = [b, *(rng.standard_normal(t.shape, np.float32) for t in whole.inputs[2:])]
        rows = zip(parts, np.split(a, ends), strict=True)
        wanted = [matmul.run(build(p), p, (part, *others)) for p, part in rows]
        found = matmul.run(build(whole), whole, (a, *others))
        return (
            found is not None
            and all(w is not None for w in wanted)
            and np.array_equal(found, np.concatenate(wanted))
        )

    return bitwise_equal_in_trials(multiplications(whole.inputs[:2], transposed), same)


def _keeps_nan(made: Implementation) -> bool:
    """Return whether a C loop applies relu, which then propagates NaN."""
    split_k = isinstance(made, PartitionedMatmul) and made.sums is not None
    return split_k or isinstance(made, few_rows.FewRows)


KERNELS: tuple[KernelSpec, ...] = tuple(
    replace(product(op, preserve_nan(build, _keeps_nan)), batchable=same_rows)
    for op in ("matmul", "onednn_matmul")
)
