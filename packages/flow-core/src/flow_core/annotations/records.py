"""The records to which annotations are parsed; they are independent of plugins."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flow_core.base.dtypes import DType, as_dtype, float32
from flow_core.base.errors import AnnotationError, InferenceError, shown
from flow_core.base.shapes import Shape

Kind = Literal["numpy", "list", "list_list", "blob"]
"""Form of one fed or fetched value: an array, a list of arrays (one per device), a list of lists
of arrays, or (kind "blob") a handle that provides any of these forms."""

KIND_NAMES: Mapping[str, str] = {
    "numpy": "Numpy",
    "list": "ListNumpy",
    "list_list": "ListListNumpy",
    "blob": "blob",
}


@dataclass(frozen=True, slots=True)
class PlaceholderSpec:
    """The description of one fed value; `placeholder` creates checked records.

    Attributes:
        kind: form of the fed value.
        shape: logical shape; for lists, the largest shape of an element.
        batch_axis: the axis of samples, None if there is none.
        is_open: whether the first size is open: it may differ from call to call, and ``shape`` has
            1 in its place.
    """

    kind: Kind
    shape: Shape
    dtype: DType = float32
    batch_axis: int | None = 0
    is_open: bool = False

    def __str__(self) -> str:
        return f"{KIND_NAMES[self.kind]}.Placeholder({self.sizes}, dtype={self.dtype})"

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The shape as programs write it, with None for an open size."""
        return (None, *self.shape[1:]) if self.is_open else self.shape


Placeholders = Any  # PlaceholderSpec, or tuples, lists and dicts of these
"""The placeholders of one parameter of a job."""


def placeholder(
    kind: Kind, shape: Sequence[int | None], dtype: object = float32, batch_axis: int | None = 0
) -> PlaceholderSpec:
    """Create a checked `PlaceholderSpec`; raises `AnnotationError` with the user's source line.

    The first size of the kind "numpy" may be None, which leaves it open.

    >>> str(placeholder("numpy", (100, 28, 28), "int32")), placeholder("numpy", (9, 2), "int8", -2)
    ('Numpy.Placeholder((100, 28, 28), dtype=int32)', PlaceholderSpec(kind='numpy', shape=(9, 2),
    dtype=oneflow.int8, batch_axis=0, is_open=False))
    """
    try:
        element = as_dtype(dtype)
    except InferenceError as error:
        raise AnnotationError.at_caller(
            f"{KIND_NAMES[kind]}.Placeholder({shown(shape)}, dtype=...)",
            found=error.found,
            allowed=error.allowed,
        ) from None
    attempted = f"{KIND_NAMES[kind]}.Placeholder"
    is_open = kind == "numpy" and _is_open(shape)
    sizes = _checked_shape(attempted, (1, *shape[1:]) if is_open else shape)
    axis = _checked_axis(attempted, sizes, batch_axis)
    return PlaceholderSpec(kind, sizes, element, axis, is_open)


@dataclass(frozen=True, slots=True)
class FedShape:
    """The shape of a fed value, in an annotation ``Annotated[form, shape, dtype]``.

    Attributes:
        sizes: logical shape; for lists, the largest shape of an element.  The first size of an
            array may be None.
        batch_axis: the axis of samples, None if there is none.
    """

    sizes: tuple[int | None, ...]
    batch_axis: int | None = 0

    def __str__(self) -> str:
        return f"shape({', '.join(map(str, self.sizes))})"


def fed_shape(sizes: Sequence[int | None], batch_axis: int | None = 0) -> FedShape:
    """Create a checked `FedShape`; raises `AnnotationError` with the user's source line.

    >>> fed_shape((100, 28, 28), -3)
    FedShape(sizes=(100, 28, 28), batch_axis=0)
    """
    checked = _checked_shape("tp.shape", (1, *sizes[1:]) if _is_open(sizes) else sizes)
    axis = _checked_axis("tp.shape", checked, batch_axis)
    return FedShape((None, *checked[1:]) if _is_open(sizes) else checked, axis)


def _is_open(shape: object) -> bool:
    """Return whether the first size is None."""
    return isinstance(shape, tuple | list) and [*shape[:1]] == [None]


def _checked_shape(attempted: str, shape: object) -> Shape:
    sizes = [_size(n) for n in shape] if isinstance(shape, Sequence) else []
    if not isinstance(shape, Sequence) or isinstance(shape, str) or None in sizes:
        raise AnnotationError.at_caller(
            attempted,
            found=f"shape {shown(shape)}",
            allowed="a tuple of positive integers, such as (100, 1, 28, 28)"
            "; the first size of a single array may be None, for any size",
        )
    return tuple(n for n in sizes if n is not None)


def _size(value: Any) -> int | None:
    """Convert a positive integer below 2**63 to int, and any other value to None."""
    try:
        size = operator.index(value)
    except TypeError:
        return None
    return size if 0 < size < 2**63 and not isinstance(value, bool) else None


def _checked_axis(attempted: str, shape: Shape, axis: int | None) -> int | None:
    if axis is None or not shape:
        return None
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise AnnotationError.at_caller(
            f"{attempted}({shape})",
            found=f"batch_axis {axis!r}",
            allowed=f"None or an axis from {-len(shape)} to {len(shape) - 1}",
        )
    return axis % len(shape)


@dataclass(frozen=True, slots=True)
class FetchLeaf:
    """One fetched value in the form ``kind``."""

    kind: Kind

    def __str__(self) -> str:
        return KIND_NAMES[self.kind]


@dataclass(frozen=True, slots=True)
class FetchTuple:
    """A tuple of a fixed number of items."""

    items: tuple[Fetch, ...]

    def __str__(self) -> str:
        return f"Tuple[{', '.join(map(str, self.items))}]"


@dataclass(frozen=True, slots=True)
class FetchList:
    """A list, whose length is that of the list that the job returns."""

    item: Fetch

    def __str__(self) -> str:
        return f"List[{self.item}]"


@dataclass(frozen=True, slots=True)
class FetchDict:
    """A dict with keys of type ``key``; the keys are those of the dict that the job returns."""

    key: type
    item: Fetch

    def __str__(self) -> str:
        return f"Dict[{self.key.__name__}, {self.item}]"


@dataclass(frozen=True, slots=True)
class FetchBundle:
    """One value, or tuples, lists and dicts of values, nested as the job returns them."""

    leaf: Fetch

    def __str__(self) -> str:
        return f"Bundle[{self.leaf}]"


@dataclass(frozen=True, slots=True)
class FetchCallback:
    """An asynchronous job: ``job(...)(callback)`` calls the callback with ``result``."""

    result: Fetch

    def __str__(self) -> str:
        return f"Callback[{self.result}]"


@dataclass(frozen=True, slots=True)
class FetchNone:
    """A job that returns nothing."""

    def __str__(self) -> str:
        return "None"


@dataclass(frozen=True, slots=True)
class FetchOf:
    """A reference to another annotation that core parses, for specs of generic annotations.

    The `AnnotationSpec.fetch` function for ``Callback[T]`` returns ``FetchCallback(FetchOf(T))``,
    and core parses ``T``.
    """

    annotation: Any


Fetch = (
    FetchLeaf | FetchTuple | FetchList | FetchDict | FetchBundle | FetchCallback | FetchNone
    | FetchOf
)  # fmt: skip

UNANNOTATED = FetchBundle(FetchLeaf("blob"))
"""The result of a job without a return annotation: handles, nested as the job returns blobs."""
