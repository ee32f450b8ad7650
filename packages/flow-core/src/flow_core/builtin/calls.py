"""Launches of numpy's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flow_core.device import Launch


def call(function: Callable[..., object], *arguments: Any, out: Any) -> Launch:
    """Return a launch of ``function(*arguments, out)`` with minimal overhead.

    Scalars become 0-d arrays, which ufuncs accept without a conversion per call.
    """
    if function in (np.maximum, np.minimum):
        return partial(function, *arguments, out=out)
    return partial(function, *arguments, out)
