"""Formatting of error messages."""

from __future__ import annotations

import pytest

from flow_core.api.optim.optimizer import SGD
from flow_core.base.errors import DataError, FlowError, InferenceError


@pytest.mark.parametrize(
    ("found", "shown"), [("é", "é"), ("a\udcff b", r"a\udcff b"), ("\ud83d\ude00", r"\ud83d\ude00")]
)
def test_any_text_can_be_printed(found: str, shown: str) -> None:
    error = DataError("reading", found=found).with_context(hint=found)
    assert str(error).encode()
    assert str(error) == str(FlowError("reading", found=shown, hint=shown))
    assert error.found == found


def test_generated_constructors_are_not_user_lines() -> None:
    """The frame of a generated dataclass constructor has no source file."""
    with pytest.raises(InferenceError) as caught:
        SGD("fast")  # type: ignore[arg-type]
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    program: dict[str, object] = {"SGD": SGD}
    with pytest.raises(InferenceError) as caught:
        exec("SGD('fast')", program)
    assert caught.value.at is not None
    assert caught.value.at.file == "<string>"
