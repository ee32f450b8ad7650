"""Shutdown handlers run after the last step."""

from __future__ import annotations

import pytest

from flow_core.base import shutdown


@pytest.fixture(autouse=True)
def own_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "_closers", [])


def test_handlers_run_once_in_reverse_order() -> None:
    closed: list[int] = []
    for i in range(3):
        shutdown.call_at_shutdown(lambda i=i: closed.append(i))
    shutdown.run_shutdown_calls()
    shutdown.run_shutdown_calls()
    assert closed == [2, 1, 0]


def test_cancelled_handler_does_not_run() -> None:
    closed: list[str] = []

    def close() -> None:
        closed.append("it")

    shutdown.cancel_at_shutdown(close)  # was never registered
    shutdown.call_at_shutdown(close)
    shutdown.cancel_at_shutdown(close)
    shutdown.run_shutdown_calls()
    assert not closed
