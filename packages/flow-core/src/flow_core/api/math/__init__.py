"""``flow.math``, in six parts; `cast`, `where` and the clip functions are also names of ``flow``
itself.

In: blobs and numbers.  Out: ops in the job being traced.  This package must not depend on `nn`.
"""

from __future__ import annotations

from flow_core.api.math import array, binary, comparison, reduce, trigonometry, unary
from flow_core.api.math.array import *  # noqa: F403 - a star join, by __all__
from flow_core.api.math.binary import *  # noqa: F403
from flow_core.api.math.comparison import *  # noqa: F403
from flow_core.api.math.reduce import *  # noqa: F403
from flow_core.api.math.trigonometry import *  # noqa: F403
from flow_core.api.math.unary import *  # noqa: F403

__all__ = [
    *array.__all__,
    *binary.__all__,
    *comparison.__all__,
    *reduce.__all__,
    *trigonometry.__all__,
    *unary.__all__,
]
