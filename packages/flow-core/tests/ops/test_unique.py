"""Token numbers are stable from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import DataError
from flow_core.ops.array import unique
from flow_core.plugins.host import default_registry
from flow_core.testing.checks import query, run_kernel

SPEC = next(spec for spec in unique.OPS if spec.type == "CategoricalOrdinalEncode")


def encode(table: Any, size: Any, tokens: Any) -> Any:
    arrays = (table, size, np.array(tokens))
    asked = query(SPEC, arrays, {"hash_precomputed": True})
    return run_kernel(default_registry().find_kernel(asked, "cpu"), asked, arrays)[0]


def test_tokens_are_numbered_in_order_and_keep_their_numbers() -> None:
    table, size = np.zeros(16, np.int64), np.zeros(1, np.int64)
    first = encode(table, size, [[7, 0, 2], [1, 7, 2], [0, 1, 7]])
    assert first.tolist() == [[1, 0, 2], [3, 1, 2], [0, 3, 1]]
    assert encode(table, size, [2, -5, 7, -5]).tolist() == [2, 4, 1, 4]
    assert size[0] == 4


def test_colliding_tokens_get_different_numbers() -> None:
    table, size = np.zeros(8, np.int64), np.zeros(1, np.int64)
    assert encode(table, size, [4, 8, 12, 16, 12]).tolist() == [1, 2, 3, 4, 3]
    with pytest.raises(DataError, match=r"(?s)numbering token 5.*table that already holds 4 other"):
        encode(table, size, [5])
