"""Shape arithmetic: balanced splits, broadcasting, reshaping, windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shape = tuple[int, ...]


def num_elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape.

    >>> num_elements((2, 3)), num_elements(())
    (6, 1)
    """
    return prod(shape)


def balanced_split(n: int, parts: int) -> tuple[int, ...]:
    """Return the sizes of a balanced split: the first ``n % parts`` parts get one more element.

    >>> balanced_split(7, 3), balanced_split(2, 4)
    ((3, 2, 2), (1, 1, 0, 0))
    """
    base, extra = divmod(n, parts)
    return tuple(base + (i < extra) for i in range(parts))


def balanced_range(n: int, parts: int, index: int) -> tuple[int, int]:
    """Return the start and the stop of part ``index`` of a balanced split.

    >>> balanced_range(7, 3, 1)
    (3, 5)
    """
    base, extra = divmod(n, parts)
    start = index * base + min(index, extra)
    return start, start + base + (index < extra)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape to which numpy broadcasts shapes; raises ValueError if it cannot.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(len(s) for s in shapes)
    out = []
    for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        sizes = {n for n in column if n != 1}
        if len(sizes) > 1:
            raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def reduced_axes(from_shape: Shape, to_shape: Shape) -> tuple[int, ...]:
    """Return the axes of ``from_shape`` to sum over to undo the broadcast of ``to_shape``.

    >>> reduced_axes((4, 2, 3), (2, 1))
    (0, 2)
    """
    lead = len(from_shape) - len(to_shape)
    tail = tuple(lead + i for i, n in enumerate(to_shape) if n == 1 and from_shape[lead + i] != 1)
    return tuple(range(lead)) + tail


def normal_axis(axis: int, rank: int) -> int:
    """Return an axis as a non-negative number; raises ValueError if it is out of range.

    >>> normal_axis(-1, 3)
    2
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else axis


def resolve_reshape(shape: Shape, target: Sequence[int]) -> Shape:
    """Return ``target`` with its single -1 filled in; raises ValueError if the sizes differ.

    >>> resolve_reshape((4, 6), (-1, 8))
    (3, 8)
    """
    total, known = num_elements(shape), prod(n for n in target if n != -1)
    if list(target).count(-1) > 1:
        raise ValueError(f"more than one -1 in {tuple(target)}")
    if -1 in target:
        if known == 0 or total % known:
            raise ValueError(f"{shape} does not reshape to {tuple(target)}")
        return tuple(total // known if n == -1 else int(n) for n in target)
    if known != total:
        raise ValueError(f"{shape} ({total} elements) does not reshape to {tuple(target)}")
    return tuple(int(n) for n in target)


def window_output(size: int, kernel: int, stride: int, pad: tuple[int, int], dilation: int) -> int:
    """Return the output length of a sliding window (floor mode).

    >>> window_output(28, 5, 1, (2, 2), 1)
    28
    """
    return (size + pad[0] + pad[1] - dilation * (kernel - 1) - 1) // stride + 1


def same_padding(
    size: int, kernel: int, stride: int, dilation: int, lower: bool = False
) -> tuple[int, int]:
    """Return the SAME padding (before, after) of one axis.

    An odd element is added after the axis, or before it if ``lower`` is true.

    >>> same_padding(28, 5, 1, 1), same_padding(28, 2, 2, 1), same_padding(5, 2, 2, 1)
    ((2, 2), (0, 0), (0, 1))
    """
    effective = (kernel - 1) * dilation + 1
    needed = max(0, (-(-size // stride) - 1) * stride + effective - size)
    small = needed // 2
    return (needed - small, small) if lower else (small, needed - small)


def contiguous_strides(shape: Shape) -> Shape:
    """Return the strides of a C-contiguous array, in elements.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def slice_range(size: int, start: int, stop: int, step: int) -> range:
    """Return the indices that a slice selects on an axis; start and stop are clamped to the axis.

    >>> list(slice_range(5, 1, 9, 2)), list(slice_range(4, 9, -9, -1))
    ([1, 3], [3, 2, 1, 0])
    """
    if size == 0:
        return range(0, 0, step)
    first, last = min(max(start, -size), size - 1), min(max(stop, -size - 1), size)
    return range(first + size * (first < 0), last + size * (last < 0), step)
