"""The annotations as type checkers see them: arrays, lists of arrays, and callables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from numpy.typing import NDArray

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Numpy: TypeAlias = NDArray[Any]
ListNumpy: TypeAlias = list[Numpy]
ListListNumpy: TypeAlias = list[ListNumpy]
Bundle: TypeAlias = "T | tuple[Bundle[T], ...] | list[Bundle[T]] | dict[Any, Bundle[T]]"


class Callback(Protocol[T_co]):
    """What a call of an asynchronous job returns."""

    def __call__(self, callback: Callable[[T_co], object], /) -> None:
        """Set the function that receives the result."""
