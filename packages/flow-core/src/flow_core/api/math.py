"""``flow.math``, in four parts; `cast`, `where` and the clips are also names of ``flow`` itself."""

from __future__ import annotations

from flow_core.api import math_array, math_binary, math_reduce, math_unary
from flow_core.api.math_array import *  # noqa: F403 - a star join, by __all__
from flow_core.api.math_binary import *  # noqa: F403
from flow_core.api.math_reduce import *  # noqa: F403
from flow_core.api.math_unary import *  # noqa: F403

__all__ = [
    *math_array.__all__,
    *math_binary.__all__,
    *math_reduce.__all__,
    *math_unary.__all__,
]
