"""Texts of errors."""

from __future__ import annotations

import pytest

from flow_core.base.errors import DataError, FlowError


@pytest.mark.parametrize(
    ("found", "shown"), [("é", "é"), ("a\udcff b", r"a\udcff b"), ("\ud83d\ude00", r"\ud83d\ude00")]
)
def test_any_text_can_be_printed(found: str, shown: str) -> None:
    error = DataError("reading", found=found).with_context(hint=found)
    assert str(error).encode()
    assert str(error) == str(FlowError("reading", found=shown, hint=shown))
    assert error.found == found
