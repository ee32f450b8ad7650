"""Wait policies: how long a process spins before it yields its core, and home cores."""

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
    SPINS,
    SPINS_OTHER_CORE,
    SPINS_OVERSUBSCRIBED,
    VERDICT,
    WAIT_POLICY,
    WaitPolicy,
    thread_budget_of_host,
    tune_waits_to_host,
    wait,
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core
    yield
    WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core = kept
    VERDICT.error = None


@pytest.mark.parametrize(
    ("others", "spins"),
    [
        ([], SPINS),
        ([["here", [1]]], SPINS),
        ([["here", [2]]], SPINS),  # it is bound to a core of its own
        ([["here", [1]], ["here", [0]]], SPINS_OVERSUBSCRIBED),
        ([["here", [0, 1]], ["here", [0, 1]]], SPINS_OVERSUBSCRIBED),
        ([["there", [0, 1]], ["there", [0, 1]], ["there", [0, 1]]], SPINS),
    ],
)
def test_processes_of_an_oversubscribed_host_yield_at_once(
    others: list[list[object]], spins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    tune_waits_to_host(0, lambda mine: [mine, *(json.dumps(row).encode() for row in others)])
    assert WAIT_POLICY.spins == spins
    assert (WAIT_POLICY.home is None) == (spins == SPINS)


def homes(masks: list[list[int]], hosts: list[str]) -> dict[int, WaitPolicy]:
    """Return the wait policies of ranks with these cores."""
    told = [json.dumps(row).encode() for row in zip(hosts, masks, strict=True)]
    found = {}
    for rank, host in enumerate(hosts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(platform, "node", lambda host=host: host)
            tune_waits_to_host(rank, lambda mine: told)
        found[rank] = WaitPolicy(WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core)
    return found


@given(st.integers(1, 4), st.integers(1, 12))
def test_home_cores_are_balanced(cores: int, size: int) -> None:
    found = homes([list(range(cores))] * size, ["a"] * size)
    if size <= cores:
        assert all(policy.home is None for policy in found.values())
        return
    counts = Counter(policy.home for policy in found.values())
    assert set(counts) == set(range(cores))
    assert max(counts.values()) - min(counts.values()) <= 1
    for rank, policy in found.items():
        same = {r for r, other in found.items() if other.home == policy.home}
        assert policy.same_core == same - {rank}


def test_home_cores_are_in_the_affinity_mask() -> None:
    found = homes([[0], [0], [1], [1], [3]], ["a", "a", "a", "a", "b"])
    assert [policy.home for policy in found.values()] == [0, 0, 1, 1, None]
    assert [sorted(policy.same_core) for policy in found.values()] == [[1], [0], [3], [2], []]


def test_waits_for_other_cores_spin_if_all_of_this_core_are_awaited() -> None:
    policy = WaitPolicy(SPINS_OVERSUBSCRIBED, home=0, same_core=frozenset({2}))
    assert policy.spins_for(2, {1, 2, 3}) == SPINS_OVERSUBSCRIBED
    assert policy.spins_for(1, {1, 2, 3}) == SPINS_OTHER_CORE
    assert policy.spins_for(1, {1, 3}) == SPINS_OVERSUBSCRIBED  # rank 2 may have something to do
    assert WaitPolicy().spins_for(1, {1}) == SPINS


def moves(monkeypatch: pytest.MonkeyPatch, mask: set[int]) -> list[Any]:
    """Record the affinities that a thread with these cores sets from now on."""
    found: list[Any] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mask, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: found.append(to), raising=False)
    return found


@pytest.mark.parametrize(
    ("mask", "expected"),
    [({0, 1, 2}, [{1}, {0, 1, 2}]), ({1}, []), ({0, 2}, [])],  # bound since, elsewhere
)
def test_migration_to_the_home_core_does_not_pin(
    mask: set[int], expected: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, policy = moves(monkeypatch, mask), WaitPolicy(SPINS_OVERSUBSCRIBED, home=1)
    for _ in range(waiting.YIELDS_PER_MIGRATION - 1):
        policy.count_yield()
    assert found == []
    policy.count_yield()
    assert found == expected


def test_processes_with_a_core_of_their_own_do_not_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    found, policy = moves(monkeypatch, {0, 1}), WaitPolicy()
    for _ in range(2 * waiting.YIELDS_PER_MIGRATION):
        policy.count_yield()
    assert found == []


@pytest.mark.parametrize(
    ("others", "count", "pool", "pools"),
    [
        ([], 4, 4, 1),
        ([["here", [0, 1, 2, 3]]], 2, 4, 1),
        ([["here", [4, 5, 6, 7]]], 4, 8, 1),  # each is bound to cores of its own
        ([["there", [0, 1]]], 2, 2, 2),  # the smallest share, so that all plans are equal
        ([["here", [0, 1, 2, 3]]] * 8, 1, 4, 1),
    ],
)
def test_thread_budgets_divide_the_cores_of_a_host(
    others: list[list[object]],
    count: int,
    pool: int,
    pools: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    told = [json.dumps(row).encode() for row in others]
    found = thread_budget_of_host(lambda mine: [mine, *told])
    assert (found.count, found.pool, found.pools) == (count, pool, pools)


@pytest.mark.slow
def test_a_wait_ends_when_it_is_done_or_with_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = iter(range(10_000))
    wait(lambda: next(polls) > WAIT_POLICY.spins + 2 * waiting.YIELDS_BEFORE_SLEEP)
    assert next(polls) < 5000
    VERDICT.error = RuntimeError("rank 3 is gone")
    with pytest.raises(RuntimeError, match="rank 3"):
        wait(lambda: False)
