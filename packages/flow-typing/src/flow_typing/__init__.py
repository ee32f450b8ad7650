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

Annotate parameters with ``Numpy.Placeholder(shape, dtype=..., batch_axis=0)``, or with the
``Placeholder`` of a list annotation. Static type checkers see results as arrays and lists. They
reject calls in annotations, but accept the equivalent form with `typing.Annotated`:
``images: Annotated[Any, tp.Numpy.Placeholder((100, 1, 28, 28))]``.
"""

from typing import Dict, List, Tuple  # noqa: UP035 - oneflow.typing offers them under these names

from flow_typing.forms import Bundle, Callback, ListListNumpy, ListNumpy, Numpy

__version__ = "0.1.0"

__all__ = ["Bundle", "Callback", "Dict", "List", "ListListNumpy", "ListNumpy", "Numpy", "Tuple"]
