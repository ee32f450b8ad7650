"""Single calls as jobs, for examples: ``from flow_core.api.examples import run``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from flow_core.annotations import placeholder
from flow_core.base.dtypes import as_dtype
from flow_core.frontend.job.function import global_function
from flow_core.frontend.session.session import default_session


def run(function: Callable[..., Any], *operands: Any, **arguments: Any) -> Any:
    """Call a function of blobs in a predict job, and return the results as arrays.

    Args:
        function: a public function, or one that calls several.
        operands: the function's positional arguments.  An array, or a list of numbers, becomes an
            input of the job, of type float32 if it is a list or float64; others stay as they are.
        arguments: the function's other arguments.

    Returns:
        The result as an array; several results in the structure that the function returns.

    >>> from flow_core.api.math.binary import add
    >>> run(add, [1, 2], 3)
    array([4., 5.], dtype=float32)
    """
    arrays = {f"x{i}": _array(x) for i, x in enumerate(operands) if _is_fed(x)}

    def job(**blobs: Any) -> Any:
        given = (blobs.get(f"x{i}", x) for i, x in enumerate(operands))
        return function(*given, **arguments)

    job.__name__ = job.__qualname__ = f"example_{len(default_session().jobs)}"
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=placeholder("numpy", array.shape, as_dtype(array.dtype)),
        )
        for name, array in arrays.items()
    ]
    job.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    step: Any = global_function()(job)(**arrays)
    return _arrays(step.get())


def _is_fed(value: object) -> bool:
    return isinstance(value, list | np.ndarray)


def _array(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float32) if isinstance(value, list) or array.dtype == float else array


def _arrays(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return type(result)(map(_arrays, result))
    return result.numpy()
