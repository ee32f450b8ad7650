"""Every test starts and ends with a session of its own."""

from collections.abc import Iterator

import pytest

import oneflow as flow


@pytest.fixture(autouse=True)
def fresh_session() -> Iterator[None]:
    flow.clear_default_session()
    yield
    flow.clear_default_session()
