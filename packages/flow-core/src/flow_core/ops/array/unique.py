"""Ops on distinct values, which count them, sum rows by them, or number them in a persistent table.

Outputs list the distinct values in the order in which they first appear.  Since shapes are fixed,
these lists are as long as the input and end with zeros; the number of valid entries is a separate
output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype, int32, int64
from flow_core.base.errors import DataError
from flow_core.ir.graph import tensor_type
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import EXTREMES, B, P, S, Sbp, Signatures

INDEX = (int32, int64)
WORD = 1 << 64


def unique_in_order(x: Array) -> tuple[Array, Array, Array]:
    """Return the distinct values in order of appearance, each element's index in them, and the
    counts.

    >>> unique_in_order(np.array([7, 0, 7, 2]))
    (array([7, 0, 2]), array([0, 1, 0, 2]), array([2, 1, 1]))
    """
    values, first, inverse, counts = np.unique(
        x.reshape(-1), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return values[order], rank[inverse.reshape(-1)], counts[order]


def padded(values: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return rows padded with zeros to the given shape."""
    out = np.zeros(shape, dtype)
    out[: len(values)] = values
    return out


class UniqueWithCounts(OpDef):
    """Distinct values, the index of each element among them, their counts and number."""

    schema = "unique_with_counts(x) -> y, idx, count, num_unique"
    attrs = {"out_idx": "int32"}

    def infer(self, ctx: InferContext) -> Types:
        (x,), dtype = ctx.inputs, as_dtype(ctx.attrs["out_idx"])
        ctx.check(len(x.shape) == 1, f"an input of type {x}", "rank 1", "flow.flatten(x, 0)")
        ctx.check(dtype in INDEX, f"out_idx {dtype}", "int32 or int64")
        index = tensor_type(x.shape, dtype)
        return (x, index, index, tensor_type((1,), index.dtype))

    def reference(self, x: Array, out_idx: str) -> tuple[Array, ...]:
        values, places, counts = unique_in_order(x)
        index = as_dtype(out_idx).numpy
        rows = padded(values, x.shape, x.dtype), places.astype(index)
        return (*rows, padded(counts, x.shape, index), np.array([len(values)], index))

    def samples(self, rng: Rng) -> Samples:
        for size in (1, 9, 40, 3000):
            yield Sample((rng.integers(0, 7, size).astype(np.int32),), {}, False)
            yield Sample((rng.integers(-3, 4, size) * 1.1,), {"out_idx": "int64"}, False)
        yield Sample((np.zeros(0),), {}, False, "no elements")


class IndexedSlicesReduceSum(OpDef):
    """The sum of all rows of each distinct index."""

    schema = "indexed_slices_reduce_sum(x_indices, x_values) -> y_indices, y_values, num_unique"

    def infer(self, ctx: InferContext) -> Types:
        indices, values = ctx.inputs
        ctx.check(indices.dtype in INDEX, f"indices of type {indices}", "int32 or int64")
        rank = len(indices.shape)
        fits = rank == 1 and values.shape[:1] == indices.shape
        ctx.check(fits, f"indices {indices} for values {values}", "an index per row of the values")
        return (indices, values, tensor_type((1,), int64))

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow splits of the axes within a row, and P, since sums of rows are linear."""
        shape = ctx.inputs[1].shape
        alone = EXTREMES if shape[0] == 1 else ()
        kinds: tuple[Sbp, ...] = (*map(S, range(1, len(shape))), P, *alone)
        return signatures(*(((B, kind), (B, kind, B)) for kind in kinds))

    def reference(self, indices: Array, values: Array) -> tuple[Array, ...]:
        distinct, places, _ = unique_in_order(indices)
        sums = np.zeros_like(values)
        np.add.at(sums, places, values)
        keys = padded(distinct, indices.shape, indices.dtype)
        return keys, sums, np.array([len(distinct)], np.int64)

    def samples(self, rng: Rng) -> Samples:
        for rows, row, dtype in ((9, (3,), np.int32), (12, (), np.int64), (1, (2, 2), np.int32)):
            indices = rng.integers(0, 6, rows).astype(dtype)
            yield Sample((indices, rng.uniform(-1, 1, (rows, *row))), {}, False)


def number_tokens(table: Array, size: Any, tokens: Array, out: Array) -> None:
    """Write the numbers of tokens to ``out``, and add new tokens to the table.

    Raises `DataError` if the table is full.
    """
    distinct, places, _ = unique_in_order(tokens)
    pairs = table.reshape(-1, 2)
    numbers = np.array([_number_of(int(t), pairs, size) for t in distinct], out.dtype)
    np.take(numbers, places.reshape(out.shape), out=out, mode="clip")


def _number_of(token: int, pairs: Any, size: Any) -> int:
    """Return the number of a token; a token missing from the table receives the next number."""
    if token == 0:
        return 0
    capacity = len(pairs)
    for step in range(capacity):
        pair = pairs[(token + step) % WORD % capacity]
        if pair[0] == token:
            return int(pair[1])
        if pair[0] == 0:
            size[0] += 1
            pair[:] = token, size[0]
            return int(size[0])
    raise _is_full(token, capacity)


def _is_full(token: int, capacity: int) -> DataError:
    return DataError(
        f"numbering token {token}",
        found=f"a table that already holds {capacity} other tokens",
        allowed="no more distinct tokens than the table's capacity",
        hint="pass a larger capacity to flow.layers.categorical_ordinal_encoder",
    )


class CategoricalOrdinalEncode(OpDef):
    """The number of each token; a new one gets the next, and 0 is always 0. The table holds
    (token, number) pairs at index token modulo capacity, or the next free one.
    """

    schema = "CategoricalOrdinalEncode(table, size, in) -> out"
    attrs = {"hash_precomputed": REQUIRED}
    mutates = (0, 1)
    effect = True

    def infer(self, ctx: InferContext) -> Types:
        table, size, x = ctx.inputs
        ctx.check(x.dtype in INDEX, f"tokens of type {x}", "int32 or int64")
        hashed = ctx.attrs["hash_precomputed"]
        ctx.check(hashed, "hash_precomputed=False", "True: tokens are hashes")
        pairs = len(table.shape) == 1 and table.size % 2 == 0 and table.dtype is x.dtype
        ctx.check(pairs, f"a table of type {table}", f"{x.dtype}[2 * capacity]")
        ctx.check(size == tensor_type((1,), x.dtype), f"a size of type {size}", f"{x.dtype}[1]")
        return (x,)

    def reference(
        self, table: Array, size: Any, tokens: Array, hash_precomputed: bool
    ) -> tuple[Array, Array, Array]:
        pairs, count = table.reshape(-1, 2).copy(), int(size[0])
        known = {int(token): int(number) for token, number in pairs if token} | {0: 0}
        capacity = len(pairs)
        for token in tokens.reshape(-1).tolist():
            if token in known:
                continue
            places = ((token + step) % WORD % capacity for step in range(capacity))
            free = next((place for place in places if pairs[place][0] == 0), None)
            if free is None:
                raise _is_full(token, capacity)
            count = int(np.array(count + 1).astype(table.dtype))  # may wrap around
            known[token] = count
            pairs[free] = token, count
        numbers = np.array([known[token] for token in tokens.reshape(-1).tolist()], tokens.dtype)
        return numbers.reshape(tokens.shape), pairs.reshape(-1), np.full_like(size, count)

    def samples(self, _: Rng) -> Samples:
        """Yield tables that hold tokens, and tokens to look up: known, new and colliding ones."""
        attrs = {"hash_precomputed": True}
        for dtype in (np.int32, np.int64):
            table = np.zeros(32, dtype)
            table[[6, 7, 24, 25]] = 3, 2, 12, 1
            for tokens in ([[7, 0, 3], [-2, 7, 12]], [19, 12, 28, 3, 19]):
                yield Sample((table, np.array([2], dtype), np.array(tokens, dtype)), attrs, False)


OPS = specs(UniqueWithCounts, IndexedSlicesReduceSum, CategoricalOrdinalEncode)
