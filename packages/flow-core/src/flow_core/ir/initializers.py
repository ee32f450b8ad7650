"""Initial values of variables: initializers as literals, and the values that they generate.

Graphs store an initializer as a tuple ``(kind, *params)``.  The value of an element depends only on
the seed and the logical element index.  Values are therefore the same in every layout, and a part
of a variable can be generated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod, sqrt
from typing import Any

import numpy as np

from flow_core.base import philox
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import InferenceError, nearest
from flow_core.base.shapes import Shape
from flow_core.base.thread_pools import process_budget
from flow_core.sharding.sbp import Region, region_shape

TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution truncated at -2 and 2."""

MIN_SHARE = 1 << 17
"""Fewest elements that a thread generates, which takes ten times as long as to start it."""

_scratch: list[philox.Scratch] = []
"""Scratch memory of former calls; fresh memory would be faulted in again for each variable."""

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


Make = Callable[[philox.Numbers], Array]
"""A function that returns the values of a chunk's elements, in memory that all chunks share."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind's parameter names, and the function that returns its `Make` for values and a shape.

    A constant, which needs no numbers, has no function.
    """

    params: tuple[str, ...]
    make: Callable[[tuple[Any, ...], Shape], Make] | None = None


def generate(
    attr: Sequence[Any],  # literal ``(kind, *params)``
    shape: Sequence[int],
    dtype: DType | str,
    seed: int,  # any 64-bit number; the same seed gives the same numbers
    region: Region | None = None,  # the part; None for the whole variable
    out: Array | None = None,  # the C-contiguous array to fill; None for a new one
) -> Array:
    """Return the initial value of a variable, or of a part of it.

    Returns:
        The filled array.

    >>> generate(("constant", 2), (3,), "int32", 0)
    array([2, 2, 2], dtype=int32)
    >>> normal = ("random_normal", 0.0, 1.0)
    >>> whole = generate(normal, (4, 3), "float32", 7)
    >>> part = generate(normal, (4, 3), "float32", 7, ((2, 4), (0, 3)))
    >>> bool((whole[2:] == part).all())
    True
    """
    initializer, shape, dtype = Initializer.from_attr(attr), tuple(shape), as_dtype(dtype)
    values = out
    if values is None:
        values = np.empty(shape if region is None else region_shape(region), dtype.numpy)
    maker = _KINDS[initializer.kind].make
    if maker is None:
        values[...] = initializer.params[0]
        return values
    make = maker(initializer.params, shape)
    place = None if region is None else (shape, tuple([low for low, _ in region]))
    count = min(process_budget().count, 1 + values.size // MIN_SHARE)

    def fill(worker: int) -> None:
        try:
            scratch = _scratch.pop()
        except IndexError:
            scratch = philox.Scratch()
        chunks = philox.by_chunk(seed, values, place, scratch)
        for elements, numbers in islice(chunks, worker, None, count):
            elements[...] = make(numbers)
        _scratch.append(scratch)

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


def _between(low: float, high: float, u: Array, v: Array, values: Array) -> None:
    """Compute uniform numbers between two bounds from 48 random bits, those of two draws."""
    np.multiply(v, 2.0**-24, out=v)
    np.add(u, v, out=values, dtype=np.float64)
    np.multiply(values, high - low, out=values)
    np.add(values, low, out=values)


def _whole_between(low: int, high: int, u: Array, v: Array, values: Array) -> None:
    """Compute whole numbers between two bounds, which may occur, too."""
    _between(low, high + 1, u, v, values)
    np.floor(values, out=values)
    np.minimum(values, high, out=values)


def _normal(mean: float, std: float, u: Array, v: Array, values: Array) -> None:
    """Compute normal numbers from two draws."""
    philox.normal(u, v, values)
    np.multiply(values, std, out=values)
    np.add(values, mean, out=values)


OF_TWO_DRAWS: dict[str, Callable[..., None]] = {
    "random_normal": _normal,
    "random_uniform": _between,
    "random_uniform_int": _whole_between,
}
"""For each kind whose values are functions of two draws, the function that computes them."""


def _of_two_draws(compute: Callable[..., None], params: Any, shape: Shape) -> Make:
    def make(numbers: philox.Numbers) -> Array:
        compute(*params, numbers(0), numbers(1), numbers.values)
        return numbers.values

    return make


def _truncated(params: Any, shape: Shape) -> Make:
    mean, std = params

    def make(numbers: philox.Numbers) -> Array:
        values = philox.truncated_normal(numbers)
        np.multiply(values, std, out=values)
        np.add(values, mean, out=values)
        return values

    return make


def _variance_scaling(params: Any, shape: Shape) -> Make:
    scale, mode, distribution, layout = params
    std = sqrt(scale / max(1.0, fan(shape, mode, layout)))
    if distribution == "truncated_normal":
        return _truncated((0.0, std / TRUNCATED_STD), shape)
    if distribution == "random_normal":
        return _of_two_draws(_normal, (0.0, std), shape)
    bound = sqrt(3.0) * std
    return _of_two_draws(_between, (-bound, bound), shape)


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
    "constant": _Kind(("value",)),
    "random_uniform": _Kind(("minval", "maxval"), partial(_of_two_draws, _between)),
    "random_uniform_int": _Kind(("minval", "maxval"), partial(_of_two_draws, _whole_between)),
    "random_normal": _Kind(("mean", "stddev"), partial(_of_two_draws, _normal)),
    "truncated_normal": _Kind(("mean", "stddev"), _truncated),
    "variance_scaling": _Kind(("scale", "mode", "distribution", "layout"), _variance_scaling),
    VALUES: _Kind(("sha256",), _values),
}
