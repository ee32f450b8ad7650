"""The comm of several device types uses NCCL between GPUs, and says why it does not."""

from __future__ import annotations

import pytest

from flow_core.authoring.specs import Device, Unavailable
from flow_core.base.errors import HostExchangeWarning
from flow_dist.nccl import staged

GPUS = tuple(Device("gpu", 0, index) for index in range(3))


def test_a_warning_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Unavailable("NCCL is not installed", "install flow-dist[cu12]")
    monkeypatch.setattr(staged.nccl, "bootstrap", lambda: found)
    text = r"between 3 GPUs .* NCCL is not installed; install flow-dist\[cu12\]"
    with pytest.warns(HostExchangeWarning, match=text):
        assert staged._direct(GPUS) is None


def test_one_gpu_needs_no_library() -> None:
    assert staged._direct(GPUS[:1]) is None
