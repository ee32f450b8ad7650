"""Each test here has its own session with its own resources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flow_core.frontend.session import session as sessions
from flow_core.plugins.host import default_registry


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    before = list(sessions._default)
    sessions._default[:] = [sessions.Session(default_registry())]
    yield
    sessions._default[0].close()
    sessions._default[:] = before
