"""What the tests share: they need the library, and say why where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flow_core.plugins.host import reset_default_registry
from flow_onednn.library import Missing, state


@pytest.fixture
def onednn() -> None:
    """Skips the test where there is no oneDNN, with the reason."""
    found = state()
    if isinstance(found, Missing):
        pytest.skip(f"no oneDNN: {found.reason}")


@pytest.fixture(scope="package", autouse=True)
def with_the_plugin() -> Iterator[None]:
    """The registry has this package's kernels, also where other tests go without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLOW_DISABLE_PLUGINS", raising=False)
        reset_default_registry()
        yield
    reset_default_registry()
