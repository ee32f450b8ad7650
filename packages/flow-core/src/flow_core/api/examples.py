"""Single calls as jobs, for examples: ``from flow_core.api.examples import rates, run, weights``.

In: public functions, schedules and optimizers.  Out: their values as arrays and numbers.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.annotations import placeholder
from flow_core.api.array.initializers import ones_initializer
from flow_core.api.array.regularizers import Regularizer
from flow_core.api.optim.learning_rates import LrScheduler
from flow_core.api.optim.optimizer import SGD, Optimizer
from flow_core.base.dtypes import as_dtype
from flow_core.frontend.job.function import global_function
from flow_core.frontend.session.session import default_session
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.job_build import Kind


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

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=placeholder("numpy", array.shape, as_dtype(array.dtype)),
        )
        for name, array in arrays.items()
    ]
    step: Any = _job(job, "predict", parameters)(**arrays)
    return _arrays(step.get())


def rates(schedule: LrScheduler, steps: int = 4) -> list[float]:
    """Return the learning rates of the first steps of a train job, rounded to four digits.

    >>> from flow_core.api.optim.learning_rates import PolynomialScheduler
    >>> rates(PolynomialScheduler(1.0, steps=2, end_learning_rate=0.5))
    [1.0, 0.75, 0.5, 0.5]
    """
    values = _weights(SGD(schedule, momentum=0), steps + 1, lambda w: -w)
    return [round(after - before, 4) for before, after in itertools.pairwise(values)]


def weights(
    optimizer: Optimizer, steps: int = 3, regularizer: Regularizer | None = None
) -> list[float]:
    """Return a weight w before each of the first steps of a train job, rounded to four digits.

    Its first value is 1, and the loss is w * w.

    >>> from flow_core.api.optim.optimizer import SGD
    >>> weights(SGD(0.1, momentum=0))
    [1.0, 0.8, 0.64]
    """
    values = _weights(optimizer, steps, lambda w: w * w, regularizer)
    return [round(value, 4) for value in values]


def _weights(
    optimizer: Optimizer, steps: int, loss: Callable[[Any], Any], penalty: Regularizer | None = None
) -> list[float]:
    def job() -> Any:
        name = f"weight_{len(default_session().jobs)}"
        w = get_variable(name, (1,), initializer=ones_initializer(), regularizer=penalty)
        optimizer.minimize(loss(w))
        return w

    step = _job(job, "train")
    return [step().get().numpy().item() for _ in range(steps)]


def _job(function: Any, kind: Kind, parameters: Sequence[inspect.Parameter] = ()) -> Any:
    function.__signature__ = inspect.Signature(parameters)
    function.__name__ = function.__qualname__ = f"example_{len(default_session().jobs)}"
    return global_function(type=kind)(function)


def _is_fed(value: object) -> bool:
    return isinstance(value, list | np.ndarray)


def _array(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float32) if isinstance(value, list) or array.dtype == float else array


def _arrays(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return type(result)(map(_arrays, result))
    return result.numpy()
