"""Errors in row work name the row unless the sample is not the cause."""

from __future__ import annotations

import pytest

from flow_core.base.errors import ConfigError
from flow_data.instances import InstanceError
from flow_data.rows import for_each_row


class ForeignError(Exception):
    """A library exception."""


@pytest.mark.parametrize("error", [ForeignError("odd"), ValueError("odd"), ArithmeticError("odd")])
def test_any_library_exception_names_the_row(error: Exception) -> None:
    def work(row: int) -> None:
        if row == 2:
            raise error

    with pytest.raises(InstanceError, match="resize, instance 2") as caught:
        for_each_row("resize", 4, work)()
    assert caught.value.row == 2
    assert "odd" in str(caught.value)


@pytest.mark.parametrize("error", [ConfigError("a setting"), MemoryError(), KeyboardInterrupt()])
def test_errors_unrelated_to_the_sample_are_raised_unchanged(error: BaseException) -> None:
    def work(row: int) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        for_each_row("resize", 4, work)()
    assert caught.value is error
