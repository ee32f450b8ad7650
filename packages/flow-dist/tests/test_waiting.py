"""How long a process looks before it offers its core to others."""

import json
import os
import platform
from collections.abc import Iterator

import pytest

from flow_dist import waiting
from flow_dist.waiting import CROWDED, EAGER, PATIENCE, VERDICT, share_of_host, suit_to_host, wait


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = PATIENCE.at_once
    yield
    PATIENCE.at_once, VERDICT.error = kept, None


@pytest.mark.parametrize(
    ("others", "at_once"),
    [
        ([], EAGER),
        ([["here", [1]]], EAGER),
        ([["here", [2]]], EAGER),  # it is bound to a core of its own
        ([["here", [1]], ["here", [0]]], CROWDED),
        ([["here", [0, 1]], ["here", [0, 1]]], CROWDED),
        ([["there", [0, 1]], ["there", [0, 1]], ["there", [0, 1]]], EAGER),
    ],
)
def test_who_shares_cores_offers_them_sooner(
    others: list[list[object]], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    suit_to_host(lambda mine: [mine, *(json.dumps(row).encode() for row in others)])
    assert PATIENCE.at_once == at_once


@pytest.mark.parametrize(
    ("others", "count"),
    [
        ([], 4),
        ([["here", [0, 1, 2, 3]]], 2),
        ([["here", [4, 5, 6, 7]]], 4),  # each is bound to cores of its own
        ([["there", [0, 1]]], 2),  # as many as the poorest has: all make the same plan
        ([["here", [0, 1, 2, 3]]] * 8, 1),
    ],
)
def test_processes_divide_the_cores_of_their_hosts(
    others: list[list[object]], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    told = [json.dumps(row).encode() for row in others]
    assert share_of_host(lambda mine: [mine, *told]).count == count


def test_a_wait_ends_when_it_is_done_or_with_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(10_000))
    wait(lambda: next(looks) > PATIENCE.at_once + 2 * waiting.POLITE)
    assert next(looks) < 5000
    VERDICT.error = RuntimeError("rank 3 is gone")
    with pytest.raises(RuntimeError, match="rank 3"):
        wait(lambda: False)
