"""The annotations themselves.

Type checkers see arrays and lists, as callers get them; at run time these are plain classes
that the plugin recognises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from flow_core.annotations import PlaceholderSpec, placeholder
from flow_core.base.dtypes import float32

T = TypeVar("T")

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Array = NDArray[Any]
    _Arrays = list[_Array]
    _ArrayLists = list[_Arrays]
else:
    _Array = _Arrays = _ArrayLists = object


class Numpy(_Array):
    """An array: the result of a job, and (`Placeholder`) what is fed.

    ``-> Numpy`` on a job function makes its call wait for the step and return a
    `numpy.ndarray`, which later steps never overwrite.

    >>> Numpy.Placeholder((2, 3)).shape
    (2, 3)
    """

    @staticmethod
    def Placeholder(
        shape: Sequence[int], dtype: object = float32, batch_axis: int | None = 0
    ) -> PlaceholderSpec:
        """A fed array of exactly this shape and element type.

        Args:
            shape: positive sizes.
            dtype: a flow dtype, its name, or anything numpy takes as dtype.
            batch_axis: the axis that counts samples, None when there is none.

        Raises:
            AnnotationError: an argument is none of these.
        """
        return placeholder("numpy", shape, dtype, batch_axis)


class ListNumpy(_Arrays):
    """A list of arrays, one per device: results and feeds of jobs in the mirrored view.

    >>> str(ListNumpy.Placeholder((2, 3), dtype="int32"))
    'ListNumpy.Placeholder((2, 3), dtype=int32)'
    """

    @staticmethod
    def Placeholder(
        shape: Sequence[int], dtype: object = float32, batch_axis: int | None = 0
    ) -> PlaceholderSpec:
        """A fed list of arrays, each of this rank and of at most as many elements.

        The arguments and errors are those of `Numpy.Placeholder`.
        """
        return placeholder("list", shape, dtype, batch_axis)


class ListListNumpy(_ArrayLists):
    """A list of lists of arrays, one list per device.

    >>> ListListNumpy.Placeholder((2, 3)).kind
    'list_list'
    """

    @staticmethod
    def Placeholder(
        shape: Sequence[int], dtype: object = float32, batch_axis: int | None = 0
    ) -> PlaceholderSpec:
        """A fed list of lists of arrays, each of this rank and of at most as many elements.

        The arguments and errors are those of `Numpy.Placeholder`.
        """
        return placeholder("list_list", shape, dtype, batch_axis)


class Callback(Generic[T]):
    """``-> Callback[T]`` makes a job asynchronous: ``job(...)(callback)``.

    The callback gets what the annotation ``T`` says; callbacks come in the order of the steps.
    """

    if TYPE_CHECKING:

        def __call__(self, callback: Callable[[T], object]) -> None:
            """Names the function that gets the result."""


if TYPE_CHECKING:
    Bundle: TypeAlias = "T | tuple[Bundle[T], ...] | list[Bundle[T]] | dict[Any, Bundle[T]]"
else:

    class Bundle(Generic[T]):
        """``-> Bundle[T]``: one value or tuples, lists and dicts of values, nested freely.

        The call gives the structure that the job function returned; ``T`` (`Numpy`, `ListNumpy`
        or `ListListNumpy`) is the form of each value.
        """
