"""The arrays of most tests of job functions: six numbers in a row."""

from typing import Any

import numpy as np

import oneflow.typing as tp

PAIR = tp.Numpy.Placeholder((2, 3))


def pair(start: float = 0.0) -> Any:
    """The numbers from ``start`` on, float32[2, 3]."""
    return np.arange(start, start + 6, dtype=np.float32).reshape(2, 3)
