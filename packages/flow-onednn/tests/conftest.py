"""What the tests share: they need the library, and say why where there is none."""

from __future__ import annotations

import pytest

from flow_onednn.library import Missing, state


@pytest.fixture
def onednn() -> None:
    """Skips the test where there is no oneDNN, with the reason."""
    found = state()
    if isinstance(found, Missing):
        pytest.skip(f"no oneDNN: {found.reason}")
