"""Annotations of job functions: what goes in, what comes out.

========================  =============================================================
annotation                a call of the job gives
========================  =============================================================
``Numpy``                 `numpy.ndarray`
``ListNumpy``             list of arrays, one per device
``ListListNumpy``         list (devices) of lists of arrays
``Tuple``, ``List``,      these, nested as written
``Dict``
``Bundle[T]``             values nested as the job returns them
``Callback[T]``           a callable that takes the callback; the call does not wait
``None``                  nothing
========================  =============================================================

Parameters are annotated with ``Numpy.Placeholder(shape, dtype=..., batch_axis=0)`` and its list
forms.  Static type checkers see results as the arrays and lists that callers get.  They do not
take calls in annotations; for them write the same placeholder inside of `typing.Annotated`,
``images: Annotated[Any, tp.Numpy.Placeholder((100, 1, 28, 28))]``, which means the same here.
"""

from typing import Dict, List, Tuple  # noqa: UP035 - oneflow.typing offers them under these names

from flow_typing.forms import Bundle, Callback, ListListNumpy, ListNumpy, Numpy

__version__ = "0.1.0"

__all__ = ["Bundle", "Callback", "Dict", "List", "ListListNumpy", "ListNumpy", "Numpy", "Tuple"]
