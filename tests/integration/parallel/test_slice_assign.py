"""A slice of a split variable is overwritten where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

ROWS, COLUMNS = 7, 5


def assigned(devices: str, axis: int | None) -> tuple[Any, Any]:
    """The variable after an assignment, and the plan."""
    flow.clear_default_session()
    layout = flow.distribute.broadcast() if axis is None else flow.distribute.split(axis)

    @flow.global_function()
    def job(value: tp.Numpy.Placeholder((3, 4))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            init = flow.constant_initializer(-1.0)
            table = flow.get_variable("table", (ROWS, COLUMNS), initializer=init, distribute=layout)
            flow.experimental.logical_slice_assign(table, value, [(1, 7, 2), (1, None, 1)])
            return flow.identity(value)

    job(np.arange(12, dtype="f4").reshape(3, 4))
    return flow.get_all_variables()["table"].numpy(), job.plan()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_slices_of_split_variables(axis: int | None, count: int) -> None:
    wanted = np.full((ROWS, COLUMNS), -1, "f4")
    wanted[1:7:2, 1:] = np.arange(12).reshape(3, 4)
    found, plan = assigned(f"0:0-{count - 1}", axis)
    np.testing.assert_array_equal(found, wanted)
    assert not [t for t in plan.ledger if t.value.startswith("table")], "the variable stays"
