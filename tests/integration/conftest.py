"""Every test starts and ends with a session of its own."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import pytest

import oneflow as flow
from flow_core.base.config import Settings
from flow_core.frontend.session import session as sessions
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry


@pytest.fixture(autouse=True)
def fresh_session() -> Iterator[None]:
    flow.clear_default_session()
    yield
    flow.clear_default_session()


@lru_cache
def _emulating(count: int) -> Registry:
    return load_plugins(replace(Settings.from_env(), emulate_gpus=count))


@pytest.fixture
def four_gpus(fresh_session: None) -> Iterator[None]:
    """A default session with four emulated gpus."""
    before = list(sessions._default)
    sessions._default[:] = [sessions.Session(_emulating(4))]
    yield
    sessions._default[0].close()
    sessions._default[:] = before
