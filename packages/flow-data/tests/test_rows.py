"""Errors of row work name the row, unless the sample is not the cause."""

from __future__ import annotations

import pytest

from flow_core.base.errors import ConfigError
from flow_data.instances import InstanceError
from flow_data.rows import for_each_row


class ForeignError(Exception):
    """Of a library."""


@pytest.mark.parametrize("error", [ForeignError("odd"), ValueError("odd"), ArithmeticError("odd")])
def test_any_exception_of_a_library_names_the_row(error: Exception) -> None:
    def work(row: int) -> None:
        if row == 2:
            raise error

    with pytest.raises(InstanceError, match="resize, instance 2") as caught:
        for_each_row("resize", 4, work)()
    assert caught.value.row == 2
    assert "odd" in str(caught.value)


@pytest.mark.parametrize("error", [ConfigError("a setting"), MemoryError(), KeyboardInterrupt()])
def test_what_is_no_fault_of_a_sample_is_raised_as_it_is(error: BaseException) -> None:
    def work(row: int) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        for_each_row("resize", 4, work)()
    assert caught.value is error
