"""Launches that call numpy functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch


def call(function: Callable[..., object], *arguments: Any, out: Any) -> Launch:
    """Return a launch of ``function(*arguments, out)`` with minimal overhead.

    Scalar arguments should be 0-d arrays, which ufuncs accept without a conversion in each call.
    """
    if function in (np.maximum, np.minimum):
        return partial(function, *arguments, out=out)
    return partial(function, *arguments, out)
