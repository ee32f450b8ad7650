"""How many threads make batches."""

from __future__ import annotations

import os

import pytest

from flow_core.errors import ConfigError
from flow_data.loading.workers import worker_count


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLOW_DATA_WORKERS", "ONEFLOW_CPU_THREADS"):
        monkeypatch.delenv(name, raising=False)


def test_one_per_core_unless_the_program_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_count() == min(16, len(os.sched_getaffinity(0)))
    monkeypatch.setenv("ONEFLOW_CPU_THREADS", "3")
    assert worker_count() == 3
    monkeypatch.setenv("FLOW_DATA_WORKERS", "5")
    assert worker_count() == 5


def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_CPU_THREADS", "all")
    with pytest.raises(ConfigError, match="reading ONEFLOW_CPU_THREADS"):
        worker_count()
