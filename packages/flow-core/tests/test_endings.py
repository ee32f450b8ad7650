"""What is closed after the last step."""

from __future__ import annotations

import pytest

from flow_core.base import shutdown


@pytest.fixture(autouse=True)
def own_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "_closers", [])


def test_the_latest_is_closed_first_and_all_once() -> None:
    closed: list[int] = []
    for i in range(3):
        shutdown.call_at_shutdown(lambda i=i: closed.append(i))
    shutdown.run_shutdown_calls()
    shutdown.run_shutdown_calls()
    assert closed == [2, 1, 0]


def test_what_is_forgotten_stays_open() -> None:
    closed: list[str] = []

    def close() -> None:
        closed.append("it")

    shutdown.cancel_at_shutdown(close)  # nobody has told of it
    shutdown.call_at_shutdown(close)
    shutdown.cancel_at_shutdown(close)
    shutdown.run_shutdown_calls()
    assert not closed
