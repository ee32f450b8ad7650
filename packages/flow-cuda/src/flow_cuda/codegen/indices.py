"""Index arithmetic with constant sizes, in 32 bits where they suffice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LIMIT = 1 << 31


def index_type(size: int) -> str:
    """Return the C++ type of indices below a size."""
    return "u32" if size < LIMIT else "i64"


def split_index(sizes: Sequence[int], name: str) -> Iterator[str]:
    """Yield the code that splits an index into coordinates ``at0``, ``at1`` ... of axes.

    >>> list(split_index((6, 4), "e"))
    ['const auto at1 = e % 4, r0 = e / 4;', 'const auto at0 = r0;']
    """
    for axis in range(len(sizes) - 1, 0, -1):
        rest = f"r{axis - 1}"
        yield f"const auto at{axis} = {name} % {sizes[axis]}, {rest} = {name} / {sizes[axis]};"
        name = rest
    yield f"const auto at0 = {name};"


def offset_of(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Return the offset of the coordinates of `split_index`, for axes of some sizes.

    >>> offset_of((2, 3, 4), (0, 1, -3)), offset_of((2,), (0,)), offset_of((2,), (1 << 40,))
    ('(i32)at1 + (i32)at2 * -3', '0', '(i64)at0 * 1099511627776')
    """
    most = sum((n - 1) * abs(step) for n, step in zip(sizes, strides, strict=True))
    kind = "i32" if most < LIMIT else "i64"
    terms = (
        f"({kind})at{axis}" + (f" * {step}" if step != 1 else "")
        for axis, step in enumerate(strides)
        if step
    )
    return " + ".join(terms) or "0"
