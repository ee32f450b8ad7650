"""How long a process looks before it offers its core to others."""

import json
import os
import platform
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_dist.control import waiting
from flow_dist.control.waiting import (
    CROWDED,
    EAGER,
    FAR,
    PATIENCE,
    VERDICT,
    Patience,
    share_of_host,
    tune_waits_to_host,
    wait,
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = PATIENCE.at_once, PATIENCE.home, PATIENCE.near
    yield
    PATIENCE.at_once, PATIENCE.home, PATIENCE.near = kept
    VERDICT.error = None


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
    tune_waits_to_host(0, lambda mine: [mine, *(json.dumps(row).encode() for row in others)])
    assert PATIENCE.at_once == at_once
    assert (PATIENCE.home is None) == (at_once == EAGER)


def homes(masks: list[list[int]], hosts: list[str]) -> dict[int, Patience]:
    """How ranks with these cores wait."""
    told = [json.dumps(row).encode() for row in zip(hosts, masks, strict=True)]
    found = {}
    for rank, host in enumerate(hosts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(platform, "node", lambda host=host: host)
            tune_waits_to_host(rank, lambda mine: told)
        found[rank] = Patience(PATIENCE.at_once, PATIENCE.home, PATIENCE.near)
    return found


@given(st.integers(1, 4), st.integers(1, 12))
def test_homes_are_spread_evenly(cores: int, size: int) -> None:
    found = homes([list(range(cores))] * size, ["a"] * size)
    if size <= cores:
        assert all(patience.home is None for patience in found.values())
        return
    counts = Counter(patience.home for patience in found.values())
    assert set(counts) == set(range(cores))
    assert max(counts.values()) - min(counts.values()) <= 1
    for rank, patience in found.items():
        same = {r for r, other in found.items() if other.home == patience.home}
        assert patience.near == same - {rank}


def test_homes_are_cores_that_a_process_may_use() -> None:
    found = homes([[0], [0], [1], [1], [3]], ["a", "a", "a", "a", "b"])
    assert [patience.home for patience in found.values()] == [0, 0, 1, 1, None]
    assert [sorted(patience.near) for patience in found.values()] == [[1], [0], [3], [2], []]


def test_it_looks_longer_for_others_once_those_near_can_do_nothing() -> None:
    patience = Patience(CROWDED, home=0, near=frozenset({2}))
    assert patience.looks_for(2, {1, 2, 3}) == CROWDED
    assert patience.looks_for(1, {1, 2, 3}) == FAR
    assert patience.looks_for(1, {1, 3}) == CROWDED  # rank 2 may have something to do
    assert Patience().looks_for(1, {1}) == EAGER


def moves(monkeypatch: pytest.MonkeyPatch, mask: set[int]) -> list[Any]:
    """Where a thread with these cores is sent from now on."""
    found: list[Any] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mask, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: found.append(to), raising=False)
    return found


@pytest.mark.parametrize(
    ("mask", "expected"),
    [({0, 1, 2}, [{1}, {0, 1, 2}]), ({1}, []), ({0, 2}, [])],  # bound since, elsewhere
)
def test_now_and_then_it_goes_home_and_may_leave_again(
    mask: set[int], expected: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, patience = moves(monkeypatch, mask), Patience(CROWDED, home=1)
    for _ in range(waiting.RETURN - 1):
        patience.count()
    assert found == []
    patience.count()
    assert found == expected


def test_who_has_a_core_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found, patience = moves(monkeypatch, {0, 1}), Patience()
    for _ in range(2 * waiting.RETURN):
        patience.count()
    assert found == []


@pytest.mark.parametrize(
    ("others", "count", "pool", "pools"),
    [
        ([], 4, 4, 1),
        ([["here", [0, 1, 2, 3]]], 2, 4, 1),
        ([["here", [4, 5, 6, 7]]], 4, 8, 1),  # each is bound to cores of its own
        ([["there", [0, 1]]], 2, 2, 2),  # as many as the poorest has: all make the same plan
        ([["here", [0, 1, 2, 3]]] * 8, 1, 4, 1),
    ],
)
def test_processes_divide_the_cores_of_their_hosts(
    others: list[list[object]],
    count: int,
    pool: int,
    pools: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    told = [json.dumps(row).encode() for row in others]
    found = share_of_host(lambda mine: [mine, *told])
    assert (found.count, found.pool, found.pools) == (count, pool, pools)


def test_a_wait_ends_when_it_is_done_or_with_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(10_000))
    wait(lambda: next(looks) > PATIENCE.at_once + 2 * waiting.POLITE)
    assert next(looks) < 5000
    VERDICT.error = RuntimeError("rank 3 is gone")
    with pytest.raises(RuntimeError, match="rank 3"):
        wait(lambda: False)
