"""Tests of the simulated device are slow ones: users without a GPU have no use for them."""

from __future__ import annotations

import pytest

PREFIX = "packages/flow-cuda/tests/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(PREFIX):
            item.add_marker(pytest.mark.slow)
