"""The annotation classes, which the plugin recognizes; type checkers see those of `static`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from flow_core.annotations import FedShape, PlaceholderSpec, fed_shape, placeholder
from flow_core.base.dtypes import float32

T = TypeVar("T")


def shape(*sizes: int | None, batch_axis: int | None = 0) -> FedShape:
    """Return the shape of a parameter, for ``Annotated[tp.Numpy, tp.shape(4, 3), flow.float32]``.

    The element type that follows the shape is float32 by default.

    Args:
        sizes: positive sizes; for a list, the largest sizes of its arrays.  The first size of an
            array may be None, for any size.
        batch_axis: the axis of the samples; None if the array has no such axis.

    Returns:
        A shape that is only used in annotations.

    Raises:
        AnnotationError: an argument is invalid.

    >>> shape(2, 3, batch_axis=None)
    FedShape(sizes=(2, 3), batch_axis=None)
    """
    return fed_shape(sizes, batch_axis)


class Numpy:
    """An array: a result of a job or, with `Placeholder`, a fed array.

    With ``-> Numpy``, a call of the job function waits for the step and returns a `numpy.ndarray`,
    which later steps do not overwrite.

    >>> Numpy.Placeholder((2, 3)).shape
    (2, 3)
    """

    @staticmethod
    def Placeholder(
        shape: Sequence[int | None], dtype: object = float32, batch_axis: int | None = 0
    ) -> PlaceholderSpec:
        """Return the spec of a fed array of exactly this shape and element type.

        Args:
            shape: positive sizes; the first may be None, which leaves it open.  The job then gets
                a plan for each size that is fed.
            dtype: a flow dtype, its name, or anything that numpy converts to a dtype.
            batch_axis: the axis of the samples; None if the array has no such axis.

        Raises:
            AnnotationError: an argument is invalid.
        """
        return placeholder("numpy", shape, dtype, batch_axis)


class ListNumpy:
    """A list of arrays, one per device: results and feeds of jobs in the mirrored view.

    >>> str(ListNumpy.Placeholder((2, 3), dtype="int32"))
    'ListNumpy.Placeholder((2, 3), dtype=int32)'
    """

    @staticmethod
    def Placeholder(
        shape: Sequence[int], dtype: object = float32, batch_axis: int | None = 0
    ) -> PlaceholderSpec:
        """Return the spec of a fed list of arrays.

        Each array has the rank of ``shape`` and at most as many elements as ``shape``.
        See `Numpy.Placeholder` for arguments and errors.
        """
        return placeholder("list", shape, dtype, batch_axis)


class ListListNumpy:
    """A list of lists of arrays, one list per device.

    >>> ListListNumpy.Placeholder((2, 3)).kind
    'list_list'
    """

    @staticmethod
    def Placeholder(
        shape: Sequence[int], dtype: object = float32, batch_axis: int | None = 0
    ) -> PlaceholderSpec:
        """Return the spec of a fed list of lists of arrays.

        Each array has the rank of ``shape`` and at most as many elements as ``shape``.
        See `Numpy.Placeholder` for arguments and errors.
        """
        return placeholder("list_list", shape, dtype, batch_axis)


class Callback(Generic[T]):
    """The annotation ``-> Callback[T]`` of an asynchronous job: ``job(...)(callback)``.

    The callback receives a result of the form ``T``; callbacks run in the order of the steps.
    """


class Bundle(Generic[T]):
    """The annotation ``-> Bundle[T]``: one value, or nested tuples, lists and dicts of values.

    The call returns the structure that the job function returned; ``T`` (`Numpy`, `ListNumpy`
    or `ListListNumpy`) is the annotation of each value.
    """
