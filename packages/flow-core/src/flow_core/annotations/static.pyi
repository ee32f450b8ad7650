"""Types of blobs and of results of asynchronous jobs, which only type checkers import.

A job function returns blobs, and calls of the job return what its annotation says.  So type
checkers take a blob for an array and for a list of arrays, and `Callback` for a union of what a
call returns and of the structures of blobs that a job function may return.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from flow_core.base.arrays import Array

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

class BlobType(Array, list[Any]):
    """The type of a blob: that of any result of a job."""

    @property
    def dtype(self) -> Any:
        """Element type."""

    # Methods of arrays and lists that blobs do not have.
    T: None
    all: None
    any: None
    append: None
    argmax: None
    argmin: None
    argsort: None
    astype: None
    clip: None
    copy: None
    cumsum: None
    dot: None
    extend: None
    fill: None
    flatten: None
    item: None
    max: None
    mean: None
    min: None
    ndim: None
    nonzero: None
    prod: None
    ravel: None
    repeat: None
    reshape: None
    round: None
    size: None
    sort: None
    squeeze: None
    std: None
    sum: None
    swapaxes: None
    take: None
    tolist: None
    transpose: None
    var: None
    view: None

class Pending(Protocol[T_co]):
    """The type of the result of a call of an asynchronous job."""

    def __call__(self, callback: Callable[[T_co], object], /) -> None:
        """Set the function that receives the result."""

Blobs: TypeAlias = "BlobType | tuple[Blobs, ...] | list[Blobs] | Mapping[Any, Blobs]"
Callback: TypeAlias = Pending[T] | tuple[Blobs, ...] | list[Blobs] | Mapping[Any, Blobs]
