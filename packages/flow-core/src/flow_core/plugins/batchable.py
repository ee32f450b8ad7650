"""Predicates for `KernelSpec.batchable`: whether one launch may compute the rows of several arrays.

Each predicate takes the query for all rows and the queries for the parts.  An input whose type is
the same in all queries is shared by all parts; other inputs are concatenated along axis 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.ir.graph import TensorType, tensor_type
from flow_core.plugins.specs import KernelQuery

Parts = Sequence[KernelQuery]


def side_by_side(types: Sequence[TensorType]) -> TensorType | None:
    """Return the type of several arrays concatenated along axis 0, or None if incompatible.

    >>> from flow_core.base.dtypes import float32
    >>> print(side_by_side([tensor_type((2, 5), float32), tensor_type((1, 5), float32)]))
    float32[3,5]
    """
    first = types[0]
    alike = all(
        t.shape and t.shape[1:] == first.shape[1:] and t.dtype is first.dtype for t in types
    )
    if not first.shape or not alike or first.dtype.is_object:
        return None
    return tensor_type((sum(t.shape[0] for t in types), *first.shape[1:]), first.dtype)


def is_split(whole: KernelQuery, parts: Parts) -> tuple[bool, ...]:
    """Return, for each input, whether it is split into parts."""
    return tuple(any(p.inputs[i] != t for p in parts) for i, t in enumerate(whole.inputs))


def repeated(type_: TensorType, rank: int) -> bool:
    """Return whether an input is broadcast along axis 0 of a result of the given rank."""
    return len(type_.shape) < rank or type_.shape[0] == 1


def elementwise_batchable(whole: KernelQuery, parts: Parts) -> bool:
    """Return whether one launch suffices, for elementwise kernels."""
    if len(whole.outputs) != 1:
        return False
    shape = whole.outputs[0].shape
    return all(
        t.shape == shape if split else repeated(t, len(shape))
        for t, split in zip(whole.inputs, is_split(whole, parts), strict=True)
    )


def rowwise(whole: KernelQuery, parts: Parts) -> bool:
    """Return whether one launch suffices, for kernels that work on each row separately.

    Each row of the result depends only on the same row of each input.
    """
    return all(is_split(whole, parts))


def rowwise_in_first(whole: KernelQuery, parts: Parts) -> bool:
    """Return whether one launch suffices, for kernels that work on each row of the first input.

    Each row of the result may also depend on the whole of the other inputs, which all parts must
    share.
    """
    first, *others = is_split(whole, parts)
    return first and not any(others)


def rowwise_in_last(whole: KernelQuery, parts: Parts) -> bool:
    """Return whether one launch suffices, for kernels that update all rows of the last input alike.

    The update of a row depends only on the row and on the other inputs, which all parts must share.
    """
    *others, last = is_split(whole, parts)
    rank = len(whole.outputs[0].shape)
    return last and not any(others) and all(repeated(t, rank) for t in whole.inputs[:-1])
