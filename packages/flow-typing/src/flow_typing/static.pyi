"""The annotations as type checkers see them: arrays, lists of arrays, and callables."""

from typing import Any, TypeAlias, TypeVar

from numpy.typing import NDArray

from flow_core.annotations import Callback as Callback

T = TypeVar("T")

Numpy: TypeAlias = NDArray[Any]
ListNumpy: TypeAlias = list[Numpy]
ListListNumpy: TypeAlias = list[ListNumpy]
Bundle: TypeAlias = "T | tuple[Bundle[T], ...] | list[Bundle[T]] | dict[Any, Bundle[T]]"
