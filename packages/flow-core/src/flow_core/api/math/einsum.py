"""``flow.einsum``: sums of products, with a letter for each axis.

The job gets transpositions, reshapes, sums and matrix products; nothing of the equation is left
for the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from flow_core.api.arguments import check
from flow_core.api.array.select import slice_v2
from flow_core.api.array.shape import identity, reshape, transpose
from flow_core.api.math.reduce import reduce_sum
from flow_core.base.errors import InferenceError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.per_device import PerDevice

__all__ = ["einsum"]

MOST_OPTIMAL = 6
"""The most operands for which all orders of contraction are compared."""
NO_LIMIT = 2**62
"""Elements of an intermediate result: the order is chosen by operations alone."""

Labels = tuple[str, ...]
Sizes = dict[str, Any]
"""The sizes of labels: integers, or numbers per device in the mirrored view."""


def einsum(equation: str, *operands: Blob, name: str | None = None) -> BlobDef:
    """Multiply blobs whose axes have letters, and sum over the letters that the result lacks.

    A letter twice in one operand selects its diagonal; ``...`` stands for further axes, which
    broadcast.  Without ``->``, the result has the letters that occur once, in alphabetical order.
    Three or more operands are multiplied in pairs, in the order with the fewest operations (found
    by ``numpy.einsum_path``: among all orders up to 6 operands, greedily beyond).

    Args:
        equation: letters of the axes of each operand, and of the result: ``"ij,jk->ik"``.
        operands: blobs of one element type.

    Returns: A blob with the axes of the result, or of shape (1,) if it has none.

    Raises:
        InferenceError: the equation has other characters, or letters that do not fit the shapes,
            as in ``numpy.einsum``; or the element types differ.

    >>> run(flow.einsum, "ij,kj->ik", [[1, 2], [3, 4]], [[1, 0], [0, 10]])
    array([[ 1., 20.],
           [ 3., 40.]], dtype=float32)
    """
    check(isinstance(equation, str), "flow.einsum", f"{equation!r:.60}", "a text and blobs")
    blobs = [checked_blob(x, "einsum") for x in operands]
    kinds = {str(x.dtype): None for x in blobs}
    hint = "flow.cast one of the operands"
    check(len(kinds) < 2, "flow.einsum", " and ".join(kinds), "one element type", hint)
    order = _order(equation, blobs)
    terms, output = _labels(equation, blobs)
    factors = [_Factor(*pair) for pair in zip(terms, blobs, strict=True)]
    sizes = _sizes(equation, factors)
    factors = [_diagonal(_narrowed(factor, sizes)) for factor in factors]
    for chosen in order:
        taken = [factors.pop(i) for i in sorted(chosen, reverse=True)]
        while len(taken) > 1:
            a, b = taken.pop(), taken.pop()
            others = (label for factor in (*factors, *taken) for label in factor.labels)
            taken.append(_multiplied(a, b, {*output, *others}, sizes))
        factors += taken
    (last,) = factors
    found = _arranged(_summed(last, output), output).blob
    is_given = any(found is x for x in blobs)
    return identity(found, name) if is_given or name is not None else found


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """A blob with the labels of its axes; without labels, its shape is (1,)."""

    labels: Labels
    blob: BlobDef


def _refusal(equation: str, blobs: Sequence[BlobDef], found: object) -> InferenceError:
    shapes = ", ".join(str(x.shape) for x in blobs)
    return InferenceError.at_caller(
        f"flow.einsum({equation!r})",
        found=f"{found} (operands of shapes {shapes})" if blobs else f"{found}",
        allowed='a letter for each axis of each operand, and of the result: "ij,jk->ik"',
    )


def _order(equation: str, blobs: Sequence[BlobDef]) -> list[tuple[int, ...]]:
    """Return the positions to multiply next, step by step; numpy checks the equation."""
    zero = np.zeros(())
    views = [np.broadcast_to(zero, tuple(map(_largest, x.shape))) for x in blobs]
    how = "optimal" if len(blobs) <= MOST_OPTIMAL else "greedy"
    try:
        path, _ = np.einsum_path(equation, *views, optimize=(how, NO_LIMIT))
    except (ValueError, TypeError, IndexError) as error:
        raise _refusal(equation, blobs, error) from None
    return [tuple(step) for step in path[1:]]


def _largest(size: Any) -> int:
    return int(max(size.values) if isinstance(size, PerDevice) else size)


def _labels(equation: str, blobs: Sequence[BlobDef]) -> tuple[list[Labels], Labels]:
    """Return the labels of the operands and of the result; those of ``...`` are numbers."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    further = [
        len(x.shape) - len(part.replace("...", "")) if "..." in part else 0
        for part, x in zip(parts, blobs, strict=True)
    ]
    dots = [str(i) for i in range(max(further))]
    terms = [_split(part, dots[len(dots) - n :]) for part, n in zip(parts, further, strict=True)]
    counts = Counter(label for term in terms for label in term)
    once = sorted(label for label, n in counts.items() if n == 1 and label.isalpha())
    output = _split(right, dots) if arrow else (*dots, *once)
    missing = [label for label in dots if label not in output]
    if missing:
        raise _refusal(equation, blobs, "a result without ..., which operands have")
    wrong = [label for label, n in Counter(output).items() if n > 1 or label not in counts]
    if wrong:
        raise _refusal(equation, blobs, f"{wrong[0]!r} of the result, twice or in no operand")
    return terms, output


def _split(part: str, dots: Sequence[str]) -> Labels:
    before, _, after = part.partition("...")
    return (*before, *dots, *after) if "..." in part else tuple(part)


def _sizes(equation: str, factors: Sequence[_Factor]) -> Sizes:
    """Return the size of each label; one of size 1 in an operand may be larger in another."""
    sizes: Sizes = {}
    for factor in factors:
        own: Sizes = {}
        for label, size in zip(factor.labels, factor.blob.shape, strict=True):
            if own.setdefault(label, size) != size:
                found = f"sizes {own[label]} and {size} of the axes {label!r} of one operand"
                raise _refusal(equation, [f.blob for f in factors], found)
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
    return sizes


def _narrowed(factor: _Factor, sizes: Sizes) -> _Factor:
    """Drop the axes of size 1 that broadcast to a larger size of another operand."""
    pairs = [*zip(factor.labels, factor.blob.shape, strict=True)]
    kept = [(label, size) for label, size in pairs if size == sizes[label] or size != 1]
    if len(kept) == len(pairs):
        return factor
    shape = [size for _, size in kept]
    return _Factor(tuple(label for label, _ in kept), reshape(factor.blob, shape or (1,)))


def _diagonal(factor: _Factor) -> _Factor:
    """Return the diagonals of the axes with the same label: every (n + 1)-th of n * n elements."""
    labels, x = factor.labels, factor.blob
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first, second = [i for i, other in enumerate(labels) if other == label][:2]
        others = [i for i in range(len(labels)) if i not in (first, second)]
        n, lead = x.shape[first], [x.shape[i] for i in others]
        x = reshape(_permuted(x, (*others, first, second)), (*lead, n * n))
        labels = (*(labels[i] for i in others), label)
        x = slice_v2(x, [(None, None, None)] * len(others) + [(None, None, n + 1)])
    return _Factor(labels, x)


def _permuted(x: BlobDef, order: Sequence[int]) -> BlobDef:
    return x if tuple(order) == tuple(range(len(order))) else transpose(x, order)


def _arranged(factor: _Factor, labels: Labels) -> _Factor:
    order = [factor.labels.index(label) for label in labels]
    return _Factor(labels, _permuted(factor.blob, order))


def _summed(factor: _Factor, kept: Iterable[str]) -> _Factor:
    """Sum over the axes whose labels are not kept."""
    names = set(kept)
    axes = [i for i, label in enumerate(factor.labels) if label not in names]
    labels = tuple(label for label in factor.labels if label in names)
    return _Factor(labels, reduce_sum(factor.blob, axes)) if axes else factor


def _multiplied(a: _Factor, b: _Factor, kept: set[str], sizes: Sizes) -> _Factor:
    """Multiply two factors, and sum over the labels that are not kept."""
    a, b = _summed(a, {*kept, *b.labels}), _summed(b, {*kept, *a.labels})
    shared = [label for label in a.labels if label in b.labels]
    inner = [label for label in shared if label not in kept]
    if not inner:
        return _outer(a, b, sizes)
    batch = [label for label in shared if label in kept]
    left = [label for label in a.labels if label not in b.labels]
    right = [label for label in b.labels if label not in a.labels]
    orders = product(_orders(batch, b), _orders(inner, b))
    batch, inner = min(
        orders,
        key=lambda order: (
            _is_moved(a, order[0], left, order[1]) + _is_moved(b, order[0], order[1], right)
        ),
    )
    x, transpose_a = _matrices(a, batch, left, inner, sizes)
    y, transpose_b = _matrices(b, batch, inner, right, sizes)
    kind = "batch_matmul" if batch else "matmul"
    found = emit_one(kind, x, y, transpose_a=transpose_a, transpose_b=transpose_b)
    labels = (*batch, *left, *right)
    if len(left) != 1 or len(right) != 1:
        found = reshape(found, [sizes[label] for label in labels] or (1,))
    return _Factor(labels, found)


def _orders(labels: list[str], b: _Factor) -> list[list[str]]:
    """Return labels in the order of the first factor and in that of the second."""
    return [labels, [label for label in b.labels if label in labels]]


def _is_moved(factor: _Factor, batch: list[str], rows: list[str], columns: list[str]) -> bool:
    orders = ((*batch, *rows, *columns), (*batch, *columns, *rows))
    return factor.labels not in orders


def _matrices(
    factor: _Factor, batch: list[str], rows: list[str], columns: list[str], sizes: Sizes
) -> tuple[BlobDef, bool]:
    """Return a stack of matrices, and whether rows and columns are swapped."""
    swapped = rows != columns and factor.labels == (*batch, *columns, *rows)
    last = (columns, rows) if swapped else (rows, columns)
    x = _arranged(factor, (*batch, *last[0], *last[1])).blob
    if len(rows) == len(columns) == 1:
        return x, swapped
    shape = [prod(sizes[label] for label in part) for part in last]
    return reshape(x, [*(sizes[label] for label in batch), *shape]), swapped


def _outer(a: _Factor, b: _Factor, sizes: Sizes) -> _Factor:
    """Multiply elementwise; each factor is repeated along the labels that it lacks."""
    labels = (*a.labels, *(label for label in b.labels if label not in a.labels))
    x, y = (_spread(factor, labels, sizes) for factor in (a, b))
    return _Factor(labels, emit_one("broadcast_mul", x, y))


def _spread(factor: _Factor, labels: Labels, sizes: Sizes) -> BlobDef:
    own = tuple(label for label in labels if label in factor.labels)
    if not own:
        return factor.blob
    x = _arranged(factor, own).blob
    start = labels.index(own[0])
    if own == labels[start:]:  # numpy's rules add leading axes
        return x
    return reshape(x, [sizes[label] if label in own else 1 for label in labels])
