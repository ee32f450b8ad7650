"""Initial values of variables: initializers as literals, and the values that they generate.

Graphs store an initializer as a tuple ``(kind, *params)``.  The value of an element depends only on
the seed and the logical element index.  Values are therefore the same in every layout, and a part
of a variable can be generated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import prod, sqrt
from typing import Any

import numpy as np

from flow_core.base import philox
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import InferenceError, nearest
from flow_core.base.shapes import Shape
from flow_core.base.thread_pools import process_budget
from flow_core.sharding.sbp import Region, region_shape

TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution truncated at -2 and 2."""

MIN_SHARE = 1 << 17
"""Fewest elements that a thread generates, which takes ten times as long as to start it."""

MODES = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("truncated_normal", "random_normal", "random_uniform")


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
        """Return the literal ``(kind, *params)``."""
        return (self.kind, *self.params)

    @classmethod
    def from_attr(cls, attr: Sequence[Any]) -> Initializer:
        """Return the initializer for a literal; raises `InferenceError` for an invalid literal."""
        problem = attr_problem(attr)
        if problem:
            raise InferenceError(
                "reading an initializer", found=f"{attr!r}: {problem}", allowed=_known()
            )
        return cls(attr[0], tuple(attr[1:]))


Make = Callable[[philox.Numbers], Any]
"""A function that computes values of elements, or one value for all, from uniform numbers."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind's parameter names, and the function that returns its `Make` for values and a shape."""

    params: tuple[str, ...]
    make: Callable[[tuple[Any, ...], Shape], Make]


def generate(
    attr: Sequence[Any],  # literal ``(kind, *params)``
    shape: Sequence[int],
    dtype: DType | str,
    seed: int,  # any 64-bit number; the same seed gives the same numbers
    region: Region | None = None,  # the part; None for the whole variable
) -> np.ndarray[Any, Any]:
    """Return the initial value of a variable, or of a part of it.

    Returns:
        A new C-contiguous array.

    >>> generate(("constant", 2), (3,), "int32", 0)
    array([2, 2, 2], dtype=int32)
    >>> normal = ("random_normal", 0.0, 1.0)
    >>> whole = generate(normal, (4, 3), "float32", 7)
    >>> part = generate(normal, (4, 3), "float32", 7, ((2, 4), (0, 3)))
    >>> bool((whole[2:] == part).all())
    True
    """
    initializer, shape, dtype = Initializer.from_attr(attr), tuple(shape), as_dtype(dtype)
    make = _KINDS[initializer.kind].make(initializer.params, shape)
    place = None if region is None else (shape, tuple([low for low, _ in region]))
    values = np.empty(shape if region is None else region_shape(region), dtype.numpy)
    count = min(process_budget().count, 1 + values.size // MIN_SHARE)

    def fill(worker: int) -> None:
        chunks = philox.by_chunk(seed, values, place)
        for elements, numbers in islice(chunks, worker, None, count):
            elements[...] = make(numbers)

    if count == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(count - 1, "flow-initializer") as pool:
            others = pool.map(fill, range(1, count))
            fill(0)
            list(others)
    return values


def attr_problem(attr: object) -> str | None:
    """Return the problem with an initializer's literal, or None if the literal is valid.

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
    """Return the fan-in, the fan-out or their average for one unit of a weight.

    Weights have the layout (out, in, window ...) for ``channels_first``, otherwise
    (out, window ..., in).

    >>> fan((8, 4, 3, 3), "fan_in", "channels_first"), fan((8, 3, 3, 4), "fan_out", "channels_last")
    (36.0, 72.0)
    """
    window = shape[2:] if layout == "channels_first" else shape[1:-1]
    fan_in, fan_out = prod(shape[1:]), prod(shape[:1]) * prod(window)
    chosen = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    return float(chosen[mode])


def _known() -> str:
    return "; ".join(f"({', '.join((kind, *row.params))})" for kind, row in _KINDS.items())


def _constant(params: Any, shape: Shape) -> Make:
    return lambda numbers: params[0]


def _unit(numbers: philox.Numbers) -> Any:
    """Return uniform float64 numbers in [0, 1) with 48 random bits."""
    high, low = numbers(0), numbers(1)
    return high.astype(np.float64) + low * 2.0**-24


def _uniform(params: Any, shape: Shape) -> Make:
    low, high = params
    return lambda numbers: low + (high - low) * _unit(numbers)


def _uniform_int(params: Any, shape: Shape) -> Make:
    low, high = params  # both bounds may be drawn
    make = _uniform((low, high + 1), shape)
    return lambda numbers: np.minimum(np.floor(make(numbers)), high)


def _normal(params: Any, shape: Shape) -> Make:
    mean, std = params
    return lambda numbers: mean + std * philox.normal(numbers).astype(np.float64)


def _truncated(params: Any, shape: Shape) -> Make:
    mean, std = params
    return lambda numbers: mean + std * philox.truncated_normal(numbers).astype(np.float64)


def _variance_scaling(params: Any, shape: Shape) -> Make:
    scale, mode, distribution, layout = params
    std = sqrt(scale / max(1.0, fan(shape, mode, layout)))
    if distribution == "truncated_normal":
        return _truncated((0.0, std / TRUNCATED_STD), shape)
    if distribution == "random_normal":
        return _normal((0.0, std), shape)
    bound = sqrt(3.0) * std
    return _uniform((-bound, bound), shape)


def _values(params: Any, shape: Shape) -> Make:
    raise InferenceError(
        "generating initial values",
        found="an initializer whose values are an array of the program",
        allowed="initializers whose values are functions of a seed",
    )


VALUES = "values"
"""The kind of an initializer that stands for an array, given by the array's SHA-256; the values
themselves are not part of the literal."""

_KINDS: dict[str, _Kind] = {
    "constant": _Kind(("value",), _constant),
    "random_uniform": _Kind(("minval", "maxval"), _uniform),
    "random_uniform_int": _Kind(("minval", "maxval"), _uniform_int),
    "random_normal": _Kind(("mean", "stddev"), _normal),
    "truncated_normal": _Kind(("mean", "stddev"), _truncated),
    "variance_scaling": _Kind(("scale", "mode", "distribution", "layout"), _variance_scaling),
    VALUES: _Kind(("sha256",), _values),
}
