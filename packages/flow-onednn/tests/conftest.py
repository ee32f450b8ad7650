"""Shared fixtures, which skip tests if the library is missing and give the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flow_core.frontend.session import session as sessions
from flow_core.plugins import host
from flow_onednn.library import Missing, state


@pytest.fixture
def onednn() -> None:
    """Skip the test if oneDNN is missing and give the reason."""
    found = state()
    if isinstance(found, Missing):
        pytest.skip(f"no oneDNN: {found.reason}")


@pytest.fixture(scope="module", autouse=True)
def with_the_plugin() -> Iterator[None]:
    """Use this package's kernels in registry and session, although other tests disable them."""
    before = list(sessions._default)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLOW_DISABLE_PLUGINS", raising=False)
        host.reset_default_registry()
        sessions._default[:] = [sessions.Session(host.default_registry())]
        yield
        sessions._default[0].close()
    sessions._default[:] = before
    host.reset_default_registry()
