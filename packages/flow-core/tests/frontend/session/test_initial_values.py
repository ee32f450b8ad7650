"""Initial values: where they are generated, and what that takes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.philox import op_seed
from flow_core.ir.initializers import generate

SHAPE = (1024, 4096)
ARRAY = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def make_job(initializer: Any) -> Any:
    @flow.global_function()
    def first_element() -> tp.Numpy:
        return flow.slice(flow.get_variable("w", SHAPE, initializer=initializer), (0, 0), (1, 1))

    return first_element


@pytest.mark.parametrize(
    ("initializer", "wanted"),
    [
        (flow.random_normal_initializer(1.0, 2.0), ("random_normal", 1.0, 2.0)),
        (flow.truncated_normal_initializer(0.0, 2.0), ("truncated_normal", 0.0, 2.0)),
        (flow.constant_initializer(3.0), ("constant", 3.0)),
        (ARRAY, None),
    ],
    ids=["random", "truncated", "constant", "array"],
)
def test_values_are_stored_without_a_second_array(initializer: Any, wanted: Any) -> None:
    job = make_job(initializer)
    job.compile()
    tracemalloc.start()
    first = job()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    values = ARRAY if wanted is None else generate(wanted, SHAPE, "float32", op_seed(0, "w"))
    assert peak < 1.5 * values.nbytes
    assert first.item() == values[0, 0]
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), values)
