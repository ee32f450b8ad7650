"""What is closed after the last step."""

from __future__ import annotations

import pytest

from flow_core import endings


@pytest.fixture(autouse=True)
def own_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "_closers", [])


def test_the_latest_is_closed_first_and_all_once() -> None:
    closed: list[int] = []
    for i in range(3):
        endings.close_at_end(lambda i=i: closed.append(i))
    endings.close_all()
    endings.close_all()
    assert closed == [2, 1, 0]


def test_what_is_forgotten_stays_open() -> None:
    closed: list[str] = []

    def close() -> None:
        closed.append("it")

    endings.keep_open(close)  # nobody has told of it
    endings.close_at_end(close)
    endings.keep_open(close)
    endings.close_all()
    assert not closed
