"""Annotations of the parameters and results of job functions.

In: annotations of a job function. Out: specs of feeds and fetches for flow-core.
Must not import anything from flow-core except its annotations, types and plugin specs.

========================  =============================================================
annotation                result of a call
========================  =============================================================
``Numpy``                 `numpy.ndarray`
``ListNumpy``             list of arrays, one per device
``ListListNumpy``         list (devices) of lists of arrays
``Tuple``, ``List``,      these containers, nested as written
``Dict``
``Bundle[T]``             values nested as the job returns them
``Callback[T]``           a callable that takes a callback; the call does not wait
``None``                  nothing
========================  =============================================================

Annotate parameters with ``Annotated[Numpy, shape(100, 1, 28, 28), flow.float32]``; type checkers
see arrays.  OneFlow's form ``Numpy.Placeholder((100, 1, 28, 28), dtype=flow.float32)`` means the
same, but type checkers reject calls in annotations.
"""

from typing import (  # noqa: UP035 - oneflow.typing offers them under these names
    TYPE_CHECKING,
    Dict,
    List,
    Tuple,
)

from flow_typing.forms import shape

if TYPE_CHECKING:
    from flow_typing.static import Bundle, Callback, ListListNumpy, ListNumpy, Numpy
else:
    from flow_typing.forms import Bundle, Callback, ListListNumpy, ListNumpy, Numpy

__version__ = "0.1.0"

__all__ = [
    "Bundle", "Callback", "Dict", "List", "ListListNumpy", "ListNumpy", "Numpy", "Tuple", "shape",
]  # fmt: skip
