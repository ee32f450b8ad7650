"""``flow.random``: random numbers that are determined by the seed, the op's name and the step.

Args:
    shape: shape of the result.
    seed: the op's own seed; the default derives from the job's seed and the op's name.
"""

from __future__ import annotations

import random as python_random
import sys
from collections.abc import Sequence
from numbers import Integral

from flow_core.api.array.index import gather
from flow_core.api.array.shape import check
from flow_core.base.dtypes import DType, as_dtype, float32, int32
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one
from flow_core.ir.graph import AttrValue

__all__ = [
    "CoinFlip", "bernoulli", "coin_flip", "gen_seed",
    "generate_random_batch_permutation_indices", "integers", "normal", "shuffle", "uniform",
]  # fmt: skip


def _seed(seed: int | None) -> dict[str, AttrValue]:
    """Return the seed attributes of an op; without a seed, it derives one from the job's seed."""
    return {"seed": -1 if seed is None else int(seed), "has_seed": seed is not None}


def bernoulli(
    x: Blob, seed: int | None = None, dtype: DType | None = None, name: str = "Bernoulli"
) -> BlobDef:
    """Return, for each element of ``x``, 1 with that probability, otherwise 0.

    Args:
        x: probabilities.
        dtype: element type of the result, by default that of ``x``.

    Returns: A blob of the shape of ``x``.

    >>> run(flow.random.bernoulli, [0, 1, 1])
    array([0., 1., 1.], dtype=float32)
    """
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    own_name = None if name == "Bernoulli" else name
    return emit_one("bernoulli", x, dtype=wanted.name, **_seed(seed), name=own_name)


def coin_flip(
    batch_size: int = 1, seed: int | None = None, probability: float = 0.5, name: str = "CoinFlip"
) -> BlobDef:
    """Return random bits, drawn anew in each step.

    Args:
        batch_size: number of bits.
        probability: probability of a 1, between 0 and 1.

    Returns: int8 of shape (batch_size,): 1 or 0.

    >>> run(flow.random.coin_flip, batch_size=3, probability=1.0)
    array([1, 1, 1], dtype=int8)
    """
    own_name = None if name == "CoinFlip" else name
    return emit_one(
        "coin_flip",
        batch_size=batch_size,
        probability=float(probability),
        **_seed(seed),
        name=own_name,
    )


CoinFlip = coin_flip


def gen_seed(seed: int | None = None) -> tuple[int, bool]:
    """Return the given seed, or a random one, and whether ops must use it.

    In the mirrored view, the result without a seed is (-1, False), so that devices draw different
    numbers.

    Args:
        seed: a number, or None for a random seed.

    Returns: The seed, and whether ops must use it.

    >>> flow.random.gen_seed(7)
    (7, True)
    """
    if seed is not None:
        return seed, True
    if current_scope().mirrored:
        return -1, False
    return python_random.randint(-sys.maxsize, sys.maxsize), True


def generate_random_batch_permutation_indices(
    value: Blob, seed: int | None = None, name: str | None = None
) -> BlobDef:
    """Return a random permutation of the row indices of a blob, drawn anew in each step.

    Args:
        value: a blob, of which only the size of axis 0 is used.

    Returns: int32 of shape ``value.shape[:1]``, which contains each row index once.

    >>> sorted(
    ...     run(
    ...         flow.random.generate_random_batch_permutation_indices, np.zeros((4, 2), np.float32)
    ...     ).tolist()
    ... )
    [0, 1, 2, 3]
    """
    return emit_one("generate_random_batch_permutation_indices", value, **_seed(seed), name=name)


def _values(
    distribution: tuple[str, float, float],
    shape: Sequence[int],
    dtype: DType,
    seed: int | None,
    name: str | None,
) -> BlobDef:
    return emit_one(
        "random_values", distribution=distribution, shape=tuple(shape),
        dtype=as_dtype(dtype).name, **_seed(seed), name=name,
    )  # fmt: skip


def integers(
    low: int,
    high: int,
    shape: Sequence[int],
    dtype: DType = int32,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return random integers of at least ``low`` and less than ``high``, drawn anew in each step.

    Args:
        low, high: bounds of the numbers, at most 2**53 in magnitude.
        dtype: an integer type.

    Returns: A blob of the given shape and element type.

    Raises: InferenceError: a bound is no integer, there is no such integer, or the element type
        cannot hold all of them.

    >>> run(flow.random.integers, 5, 6, shape=(2,))
    array([5, 5], dtype=int32)
    """
    for key, bound in (("low", low), ("high", high)):
        whole = isinstance(bound, Integral)
        check(whole, "random.integers", f"{key}={bound!r:.60}", "an integer")
    return _values(("random_uniform_int", int(low), int(high) - 1), shape, dtype, seed, name)


def normal(
    shape: Sequence[int],
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DType = float32,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return normally distributed random numbers, drawn anew in each step (Box-Muller method).

    Args:
        mean: mean of the distribution.
        stddev: standard deviation of the distribution.
        dtype: a floating type.

    Returns: A blob of the given shape and element type.

    Raises: InferenceError: the standard deviation is negative, or the element type is not floating.

    >>> run(flow.random.normal, (2,), mean=3, stddev=0)
    array([3., 3.], dtype=float32)
    """
    return _values(("random_normal", float(mean), float(stddev)), shape, dtype, seed, name)


def uniform(
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    dtype: DType = float32,
    seed: int | None = None,
    name: str | None = None,
) -> BlobDef:
    """Return random numbers of at least ``low`` and less than ``high``, drawn anew in each step.

    Args:
        low, high: bounds of the numbers.
        dtype: a floating type.

    Returns: A blob of the given shape and element type.

    Raises: InferenceError: ``low`` is not less than ``high``, or the element type is not floating.

    >>> x = run(flow.random.uniform, (100,), 2, 3)
    >>> bool(((2 <= x) & (x < 3)).all())
    True
    """
    return _values(("random_uniform", float(low), float(high)), shape, dtype, seed, name)


def shuffle(value: Blob, seed: int | None = None, name: str | None = None) -> BlobDef:
    """Return the rows of a blob (axis 0) in a random order, drawn anew in each step.

    Args:
        value: a blob with at least one axis.

    Returns: A blob of the shape and element type of ``value``.

    Raises: InferenceError: ``value`` has no axes.

    >>> sorted(run(flow.random.shuffle, [1, 2, 3, 4]).tolist())
    [1.0, 2.0, 3.0, 4.0]
    """
    check(len(value.shape) > 0, "random.shuffle", f"shape {value.shape}", "at least one axis")
    return gather(value, generate_random_batch_permutation_indices(value, seed), name=name)
