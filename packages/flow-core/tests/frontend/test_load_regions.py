"""Variables that are overwritten by region: what is read, and when."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import VariableError
from flow_core.frontend.session.session import default_session

VALUE = np.arange(12, dtype=np.float32).reshape(4, 3)


def make_job(devices: str = "0:0") -> Any:
    @flow.global_function()
    def total() -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            split = flow.distribute.split(0)
            initial = flow.ones_initializer()
            w = flow.get_variable("w", (4, 3), initializer=initial, distribute=split)
            return flow.math.reduce_sum(w)

    return total


class Reads(list[Any]):
    """The regions that were read."""

    def __call__(self, region: Any) -> Any:
        self.append(region)
        return VALUE[tuple(slice(low, high) for low, high in region)]


def test_a_variable_that_no_job_has_laid_out_is_read_by_the_job() -> None:
    total, reads = make_job("0:0-1"), Reads()
    session = default_session()
    assert list(session.requested_types()) == ["w"]
    session.load_regions({"w": reads})
    assert reads == []
    assert total()[0] == VALUE.sum()
    assert reads == [((0, 2), (0, 3)), ((2, 4), (0, 3))]


def test_a_variable_in_use_is_read_in_its_layout() -> None:
    total, reads = make_job("0:0-1"), Reads()
    assert total()[0] == 12
    default_session().load_regions({"w": reads})
    assert reads == [((0, 2), (0, 3)), ((2, 4), (0, 3))]
    assert total()[0] == VALUE.sum()


def test_values_are_visible_before_a_job_runs() -> None:
    total, reads = make_job("0:0-1"), Reads()
    blob = flow.get_all_variables()["w"]
    default_session().load_regions({"w": reads})
    np.testing.assert_array_equal(blob.numpy(), VALUE)
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), VALUE)
    assert total()[0] == VALUE.sum()


def test_an_assignment_after_it_wins_and_keeps_no_reference() -> None:
    total = make_job("0:0-1")
    session, value = default_session(), np.full((4, 3), 2, np.float32)
    session.load_regions({"w": Reads()})
    session.assign({"w": value})
    value[:] = 9
    assert total()[0] == 24


def test_a_name_that_no_job_has() -> None:
    make_job()
    with pytest.raises(VariableError, match="no such variable"):
        default_session().load_regions({"v": Reads()})
