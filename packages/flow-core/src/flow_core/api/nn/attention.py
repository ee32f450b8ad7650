"""``flow.nn``: attention, rotary positions, and gated units."""

from __future__ import annotations

from typing import Any

from flow_core.api.arguments import checked_axis, checker
from flow_core.api.array.padding import expand
from flow_core.api.array.parts import split
from flow_core.api.array.select import concat
from flow_core.api.array.shape import identity, reshape
from flow_core.api.array.source import fused_scale_tril
from flow_core.api.math.binary import cast
from flow_core.api.math.reduce import reduce_mean
from flow_core.api.math.trigonometry import cos, sin
from flow_core.api.math.unary import rsqrt, square
from flow_core.api.nn.activation import swish
from flow_core.api.nn.basic import dropout, softmax
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one

__all__ = ["attention", "rms_norm", "rotary_embedding", "swiglu"]

_check = checker("flow.nn.")
MASKED = {"float16": -3e4}
"""What is added to scores that are masked; two such numbers are in the range of the type."""


def swiglu(x: Blob, axis: int = -1, name: str | None = None) -> BlobDef:
    """Return ``swish(a) * b`` for the two halves of an axis, a gated unit of Shazeer (2020).

    Args:
        x: a floating-point blob; a is the first half of the axis, b the second one.
        axis: the axis, of even size.

    Returns: A blob of the element type of ``x``, with half the size on the axis.

    Raises: InferenceError: the axis is out of range, or its size is odd.

    >>> run(flow.nn.swiglu, [[0, 1, 5, 2]]).round(4)
    array([[0.    , 1.4621]], dtype=float32)
    """
    where = checked_axis(_check, "swiglu", checked_blob(x, "swiglu"), axis)
    even = x.shape[where] % 2 == 0
    _check(even, "swiglu", f"axis {axis} for shape {x.shape}", "an axis of even size")
    gate, value = split(x, 2, where)
    return emit_one("broadcast_mul", swish(gate), value, name=name)


def rms_norm(
    x: Blob,
    gamma: Blob | None = None,
    axis: int = -1,
    epsilon: float = 1e-6,
    name: str | None = None,
) -> BlobDef:
    """Divide by the root of the mean square along an axis (Zhang and Sennrich, 2019).

    Args:
        x: a floating-point blob; 16-bit types are computed in float32.
        gamma: factors of shape (x.shape[axis],), or None.
        axis: the axis.
        epsilon: added to the mean square.

    Returns: A blob of the shape and element type of ``x``.

    Raises: InferenceError: the axis is out of range, or ``gamma`` has another shape.

    >>> run(flow.nn.rms_norm, [[3, 4]]).round(4)
    array([[0.8485, 1.1314]], dtype=float32)
    """
    x = checked_blob(x, "rms_norm")
    where = checked_axis(_check, "rms_norm", x, axis)
    _check(x.dtype.is_floating, "rms_norm", f"{x}", "a floating-point blob")
    wide = cast(x, x.dtype.accumulate)
    y: Any = wide * rsqrt(reduce_mean(square(wide), where, True) + epsilon)
    y = cast(y, x.dtype)
    if gamma is not None:
        size = x.shape[where]
        allowed = f"shape ({size},)"
        _check(gamma.shape == (size,), "rms_norm", f"gamma of shape {gamma.shape}", allowed)
        y = y * reshape(gamma, [size if i == where else 1 for i, _ in enumerate(x.shape)])
    return y if name is None else identity(y, name)


def rotary_embedding(x: Blob, base: float = 10000.0, name: str | None = None) -> BlobDef:
    """Rotate pairs of features by angles that grow with the position (Su et al., 2021).

    At position p, the features i and i + d / 2 of d are rotated by ``p * base ** (-2 * i / d)``.
    Products of two rotated vectors depend on the difference of their positions alone.  The paper
    pairs neighbors; the two forms differ in the order of the features, and this is the one of the
    weights of Llama and GPT-NeoX.

    Args:
        x: a floating-point blob of shape (..., positions, features).
        base: the ratio of the slowest to the fastest rotation.

    Returns: A blob of the shape and element type of ``x``.

    Raises: InferenceError: ``x`` has one axis, or an odd number of features.

    >>> run(flow.nn.rotary_embedding, [[1, 0], [1, 0]]).round(4)
    array([[1.    , 0.    ],
           [0.5403, 0.8415]], dtype=float32)
    """
    x = checked_blob(x, "rotary_embedding")
    fits = len(x.shape) > 1 and x.shape[-1] % 2 == 0 and x.dtype.is_floating
    allowed = "a floating-point blob (..., positions, an even number of features)"
    _check(fits, "rotary_embedding", f"{x}", allowed)
    angles = _angles(x.shape[-2], x.shape[-1], base)
    cosine, sine = (cast(f(angles), x.dtype) for f in (cos, sin))
    first, second = split(x, 2, -1)
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    return concat(rotated, len(x.shape) - 1, name=name)


def _angles(length: Any, features: int, base: float) -> BlobDef:
    """Return angles of shape (positions, features / 2); the job computes them once."""
    frequencies = tuple(float(base) ** (-2 * i / features) for i in range(features // 2))
    row = emit_one("literal", shape=(1, features // 2), dtype="float64", data=frequencies)
    positions = emit_one("range", start=0, limit=length, delta=1, dtype="float64")
    return emit_one("broadcast_mul", reshape(positions, (length, 1)), row)


def attention(
    query: Blob,
    key: Blob,
    value: Blob,
    mask: Blob | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    scale: float | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return ``softmax(q k^T scale + mask) v`` for each head (Vaswani et al., 2017).

    With fewer heads of keys and values, each of these serves consecutive heads of queries (grouped
    queries; Ainslie et al., 2023); keys and values are not repeated.

    Args:
        query: shape (batch, heads, queries, features), floating.
        key: shape (batch, key heads, keys, features); the number of key heads divides ``heads``.
        value: shape (batch, key heads, keys, value features).
        mask: truth values (int8, bool) of shape (batch, keys), 0 for keys that are padding; or
            floating-point numbers that are added to the scores, of a shape that broadcasts to
            (batch, heads, queries, keys).
        causal: whether a query sees only keys up to its own position; the last query is at the
            position of the last key.
        dropout_rate: the rate at which weights are dropped in train jobs.
        scale: the factor of the products, by default ``features ** -0.5``.

    Returns:
        A blob of shape (batch, heads, queries, value features).  A query that sees no key gets an
        average of all values, not NaN.

    Raises: InferenceError: the shapes do not fit together.

    >>> x = [[[[0], [1]]]]
    >>> run(flow.nn.attention, x, x, x, causal=True).ravel().round(4)
    array([0.    , 0.7311], dtype=float32)
    """
    q, k, v = (checked_blob(x, "attention") for x in (query, key, value))
    _check_heads(q, k, v)
    (batch, heads, queries, features), (shared, keys) = q.shape, k.shape[1:3]
    bias = _added_to_scores(q, keys, mask, causal)
    if heads > shared:  # the queries that share keys are rows of one matrix
        q = reshape(q, (batch, shared, heads // shared * queries, features))
        bias = None if bias is None else _of_groups(bias, heads, shared, queries)
    factor = max(features, 1) ** -0.5 if scale is None else float(scale)
    scores: Any = emit_one("batch_matmul", q, k, transpose_a=False, transpose_b=True) * factor
    weights = softmax(scores if bias is None else scores + bias)
    if dropout_rate:
        weights = dropout(weights, dropout_rate)
    found = emit_one("batch_matmul", weights, v, transpose_a=False, transpose_b=False)
    if heads > shared:
        found = reshape(found, (batch, heads, queries, v.shape[3]))
    return found if name is None else identity(found, name)


def _check_heads(q: BlobDef, k: BlobDef, v: BlobDef) -> None:
    shapes = f"query {q.shape}, key {k.shape}, value {v.shape}"
    allowed = (
        "(batch, heads, queries, features), (batch, key heads, keys, features) and (batch, key "
        "heads, keys, value features), with a number of key heads that divides the heads"
    )
    ranked = len(q.shape) == len(k.shape) == len(v.shape) == 4
    _check(ranked, "attention", shapes, allowed)
    fits = (q.shape[0], *k.shape[:3], q.shape[3]) == (k.shape[0], *v.shape[:3], k.shape[3])
    fits = fits and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    _check(fits, "attention", shapes, allowed)


def _added_to_scores(q: BlobDef, keys: int, mask: Blob | None, causal: bool) -> BlobDef | None:
    """Return what is added to scores of shape (batch, heads, queries, keys), or None."""
    queries, lowest = q.shape[2], MASKED.get(q.dtype.name, -1e9)
    added = None
    if causal:
        none = emit_one("constant", value=0.0, dtype=q.dtype.name, shape=(queries, keys))
        added = fused_scale_tril(none, keys - queries, lowest)
        added = reshape(added, (1, 1, queries, keys))
    if mask is None:
        return added
    mask = checked_blob(mask, "attention")
    if mask.dtype.is_floating:
        allowed = f"a shape that broadcasts to {(*q.shape[:3], keys)}"
        _check(len(mask.shape) <= 4, "attention", f"a mask of shape {mask.shape}", allowed)
        given = reshape(cast(mask, q.dtype), (*(1,) * (4 - len(mask.shape)), *mask.shape))
    else:
        batch, allowed = q.shape[0], f"truth values of shape {(q.shape[0], keys)}"
        _check(mask.shape == (batch, keys), "attention", f"a mask {mask}", allowed)
        seen = emit_one("scalar_logical_not_equal", mask, operand=0)
        hidden: Any = cast(seen, q.dtype) - 1.0
        given = reshape(hidden * -lowest, (batch, 1, 1, keys))
    return given if added is None else emit_one("broadcast_add", given, added)


def _of_groups(bias: BlobDef, heads: int, shared: int, queries: int) -> BlobDef:
    """Return what is added to scores of shape (batch, key heads, heads of each * queries, keys)."""
    batch, own, rows, keys = bias.shape
    if own == rows == 1:
        return bias
    each = heads // shared
    of_heads = own if own == 1 else shared
    shape = (batch, of_heads, 1 if own == 1 else each, rows, keys)
    repeated = expand(reshape(bias, shape), (batch, of_heads, each, queries, keys))
    return reshape(repeated, (batch, of_heads, each * queries, keys))
