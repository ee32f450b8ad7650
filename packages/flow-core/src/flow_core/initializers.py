"""How variables begin: initializers as literals, and the numbers they stand for.

An initializer is written into graphs as a tuple ``(kind, *params)``.  The numbers depend on the
seed and the logical element index only, so that they are the same in every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from flow_core import philox
from flow_core.dtypes import DType, as_dtype
from flow_core.errors import InferenceError, nearest

TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal that is cut off at -2 and 2."""

MODES = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("truncated_normal", "random_normal", "random_uniform")
LAYOUTS = ("", "channels_first", "channels_last")


@dataclass(frozen=True, slots=True)
class Initializer:
    """An initializer: its kind and the kind's parameters.

    >>> Initializer("random_normal", (0.0, 0.1)).to_attr()
    ('random_normal', 0.0, 0.1)
    >>> Initializer.from_attr(("constant", 1.0))
    Initializer(kind='constant', params=(1.0,))
    """

    kind: str
    params: tuple[Any, ...]

    def to_attr(self) -> tuple[Any, ...]:
        """The literal ``(kind, *params)``."""
        return (self.kind, *self.params)

    @classmethod
    def from_attr(cls, attr: Sequence[Any]) -> Initializer:
        """The initializer of a literal; raises `InferenceError` when there is none."""
        problem = attr_problem(attr)
        if problem:
            raise InferenceError(
                "reading an initializer", found=f"{attr!r}: {problem}", allowed=_known()
            )
        return cls(attr[0], tuple(attr[1:]))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Parameter names of a kind and the function that makes its numbers."""

    params: tuple[str, ...]
    make: Callable[[tuple[Any, ...], tuple[int, ...], DType, int], Any]


def generate(
    attr: Sequence[Any], shape: Sequence[int], dtype: DType | str, seed: int
) -> np.ndarray[Any, Any]:
    """The first value of a variable.

    Args:
        attr: literal ``(kind, *params)``.
        shape: logical shape.
        dtype: element type.
        seed: any 64-bit number; the same seed gives the same numbers.

    Returns:
        A new C-contiguous array.

    >>> generate(("constant", 2), (3,), "int32", 0)
    array([2, 2, 2], dtype=int32)
    """
    initializer, shape, dtype = Initializer.from_attr(attr), tuple(shape), as_dtype(dtype)
    values = _KINDS[initializer.kind].make(initializer.params, shape, dtype, seed)
    return np.ascontiguousarray(values).reshape(shape).astype(dtype.numpy, copy=False)


def attr_problem(attr: object) -> str | None:
    """What is wrong with an initializer's literal, None when nothing is.

    >>> attr_problem(("random_normal", 0.0))
    'needs mean, stddev'
    """
    if not isinstance(attr, tuple | list) or not attr:
        return "no (kind, *params)"
    if attr[0] not in _KINDS:
        return nearest(str(attr[0]), _KINDS) or "unknown kind"
    names = _KINDS[attr[0]].params
    return None if len(attr) == len(names) + 1 else f"needs {', '.join(names)}"


def fan(shape: Sequence[int], mode: str, layout: str) -> float:
    """How many numbers flow into, out of, or (on average) through one unit of a weight.

    Weights are laid out (out, in, window ...) for ``channels_first`` and (out, window ..., in)
    otherwise.

    >>> fan((8, 4, 3, 3), "fan_in", "channels_first"), fan((8, 3, 3, 4), "fan_out", "channels_last")
    (36.0, 72.0)
    """
    window = shape[2:] if layout == "channels_first" else shape[1:-1]
    fan_in, fan_out = prod(shape[1:]), prod(shape[:1]) * prod(window)
    chosen = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    return float(chosen[mode])


def _known() -> str:
    return "; ".join(f"({', '.join((kind, *row.params))})" for kind, row in _KINDS.items())


def _unit(shape: tuple[int, ...], seed: int) -> Any:
    """Uniform float64 numbers in [0, 1) with 48 random bits."""
    high, low = (philox.uniform(seed, shape, draw=draw) for draw in (0, 1))
    return high.astype(np.float64) + low * 2.0**-24


def _constant(params: Any, shape: tuple[int, ...], dtype: DType, _: int) -> Any:
    return np.full(shape, params[0], dtype.numpy)


def _uniform(params: Any, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    low, high = params
    return low + (high - low) * _unit(shape, seed)


def _uniform_int(params: Any, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    low, high = params
    return np.minimum(np.floor(low + (high - low) * _unit(shape, seed)), max(low, high - 1))


def _normal(params: Any, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    mean, std = params
    return mean + std * philox.normal(seed, shape).astype(np.float64)


def _truncated(params: Any, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    mean, std = params
    return mean + std * philox.truncated_normal(seed, shape).astype(np.float64)


def _variance_scaling(params: Any, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    scale, mode, distribution, layout = params
    std = sqrt(scale / max(1.0, fan(shape, mode, layout)))
    if distribution == "truncated_normal":
        return _truncated((0.0, std / TRUNCATED_STD), shape, dtype, seed)
    if distribution == "random_normal":
        return _normal((0.0, std), shape, dtype, seed)
    bound = sqrt(3.0) * std
    return _uniform((-bound, bound), shape, dtype, seed)


_KINDS: dict[str, _Kind] = {
    "constant": _Kind(("value",), _constant),
    "random_uniform": _Kind(("minval", "maxval"), _uniform),
    "random_uniform_int": _Kind(("minval", "maxval"), _uniform_int),
    "random_normal": _Kind(("mean", "stddev"), _normal),
    "truncated_normal": _Kind(("mean", "stddev"), _truncated),
    "variance_scaling": _Kind(("scale", "mode", "distribution", "layout"), _variance_scaling),
}
