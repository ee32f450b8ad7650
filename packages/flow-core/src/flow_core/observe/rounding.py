"""How far two arrays are apart, where the order of roundings is all that may differ."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np

from flow_core.ir import TensorType
from flow_core.observe.rehearsal import same_bits

ALLOWED = {2: 2.0**-4, 4: 2.0**-13, 8: 2.0**-42}
"""By how much of the largest element results of a step may differ, by the bytes of a number: a
thousand roundings, less in half types, whose sums are made in float32."""


def drift(found: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest element; 0.0 where all bits are the same.

    >>> one = np.array([1.0, 2.0], np.float32)
    >>> drift(one, one), drift(one + np.float32(1), one), drift(one[:1], one)
    (0.0, 0.5, inf)
    """
    if same_bits(found, wanted):
        return 0.0
    if found.shape != wanted.shape or found.dtype.kind in "iubO":
        return inf
    a, b = (x.astype(np.float64) for x in (found, wanted))
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return inf
    return float(
        np.abs(a - b)[finite].max() / max(np.abs(b[finite]).max(), np.finfo(np.float32).tiny)
    )


def allowed(types: Iterable[TensorType]) -> float:
    """The drift that roundings in another order explain, where these types are computed with.

    >>> from flow_core.dtypes import float16, float32, int32
    >>> from flow_core.ir import tensor_type
    >>> allowed([tensor_type((), float32), tensor_type((), int32)]) == 2**-13
    True
    >>> allowed([tensor_type((), float32), tensor_type((), float16)]) == 2**-4
    True
    """
    sizes = {t.dtype.itemsize for t in types if t.dtype.is_floating}
    return max((ALLOWED.get(size, 0.0) for size in sizes), default=0.0)
