"""Verdicts on ranks' reports: the right kind, the right rank, and none on a healthy job."""

import itertools
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_dist.control.board import Board, Failure, Limits
from flow_dist.control.ranges import to_runs
from flow_dist.control.report import Reporter
from flow_dist.control.watch import Site, Watch

GROUPS = [g for n in (2, 3, 4) for g in itertools.combinations(range(4), n)]
LIMITS = Limits(beat=0.5, silence=5, exchange=60, start=30, settle=1)


def board(size: int = 3, hosts: str = "abc") -> Board:
    made = Board(size, LIMITS, 0.0)
    for rank in range(size):
        made.joined(rank, f"host-{hosts[rank]}", hosts[rank], 0.0)
    return made


def place(
    op: str = "",
    count: int = 1,
    ranks: tuple[int, ...] = (0, 1, 2),
    what: str = "all_reduce float32[4]",
) -> dict[str, Any]:
    """The report of a rank that waits in an exchange, or works."""
    found: dict[str, Any] = {"step": 7, "sequence": count, "line": "train.py:9", "site": -1}
    if op:
        key = crc32((op + what).encode())
        return found | {
            "teams": [[0, to_runs(ranks), ""]],
            "sites": [[0, op, "all_reduce float32[4]", "train.py:9", 0]],
            "counts": [[0, count, f"{key:08x}"]],
            "site": 0,
        }
    return found


def run(made: Board, places: dict[int, dict[str, Any]], until: float, began: float = 0) -> Failure:
    """All ranks but those of no place send a report every half second."""
    now, sent = began, set[int]()
    while now < until and not made.check(now):
        now += 0.5
        for rank, status in places.items():
            made.beat(rank, {} if rank in sent else status, now)
            sent.add(rank)
    failure = made.verdict(now)
    assert failure is not None
    return failure


def test_a_killed_rank() -> None:
    made = board()
    for rank in (0, 1, 2):
        made.beat(rank, place("loss"), 1.0)
    made.lost(1, 1.2)
    made.lost(0, 1.3)  # which its launcher has killed next
    failure = made.verdict(1.3)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.host, failure.step) == ("died", 1, "host-b", 7)
    assert failure.op == "loss"
    assert failure.message.startswith("rank 1 of 3 on host-b, at step 7 in 'loss' (train.py:9)")
    for rank in range(3):
        assert f"  rank {rank}: on host-" in failure.message
    assert "waiting for ranks 0, 1, 2" in failure.message


def lose_a_host(made: Board, answer: float | None) -> Failure | None:
    """Ranks 0 and 1 on host a are killed at 2.1 s, and 2 on host c answers at some time or not."""
    for rank in (0, 1, 2):
        made.beat(rank, place("loss"), 2.0)
    made.lost(0, 2.1)
    made.lost(1, 2.1)
    now = 2.1
    while not made.check(now):
        assert made.in_doubt
        now += 0.1
        if answer is not None and now >= answer:
            made.beat(2, place("loss"), now)
    assert not made.in_doubt
    return made.verdict(now)


def test_a_lost_host_is_blamed_not_the_killed_rank() -> None:
    """A launcher that loses a host ends all others: they are dead before that one is silent."""
    failure = lose_a_host(board(hosts="aac"), None)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.silent) == ("silent", 2, ("c",))
    assert "  rank 0: on host-a" in failure.message
    assert ", disconnected 5.0 s ago" in failure.message


def test_a_killed_rank_is_blamed_while_hosts_respond() -> None:
    failure = lose_a_host(board(hosts="aac"), 2.3)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.silent) == ("died", 0, ())


def test_a_silent_rank_and_a_silent_host() -> None:
    work = place()
    failure = run(board(), {0: work, 2: work}, 20)
    assert (failure.kind, failure.rank) == ("silent", 1)
    assert "last heard 5.5 s ago" in failure.message
    failure = run(board(hosts="abb"), {0: work}, 20)
    assert (failure.kind, failure.rank) == ("silent", 1)
    assert "neither has any other rank on host-b" in failure.message
    assert failure.silent == ("b",)


def test_a_host_whose_ranks_have_ended_is_not_silent() -> None:
    made = board(size=2)
    made.ended(0, 0, place(), 0.5)
    failure = run(made, {}, 20)
    assert (failure.kind, failure.rank, failure.silent) == ("silent", 1, ("b",))


def test_an_exception_and_a_status() -> None:
    made = board()
    made.raised(2, "ValueError: no (train.py:3)", place(), 1.0)
    made.lost(2, 1.1)
    failure = made.verdict(1.1)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("exception", 2)
    assert "raised ValueError: no (train.py:3)" in failure.message
    made = board()
    made.ended(0, 3, place(), 1.0)
    assert made.check(1.0)
    assert "ended with status 3" in str(made.verdict(1.0))


def test_another_exchange_of_the_same_number() -> None:
    failure = run(board(), {0: place("a"), 1: place("b"), 2: place("a")}, 20)
    assert (failure.kind, failure.rank) == ("diverged", 1)
    assert "in b: all_reduce float32[4]; rank 0 in a: all_reduce float32[4]" in failure.message


def test_other_shapes_of_the_same_exchange() -> None:
    other = place("a", what="all_reduce float32[5]")
    failure = run(board(), {0: place("a"), 1: place("a"), 2: other}, 20)
    assert (failure.kind, failure.rank) == ("diverged", 2)


def test_sends_that_do_not_wait_hide_nothing() -> None:
    """One rank is two exchanges ahead when it has to wait: they parted before."""
    watches = [Watch(), Watch()]
    names = ("a", "b", "c"), ("x", "b", "c")
    for watch, mine in zip(watches, names, strict=True):
        sites = [watch.site(name, "send", ranks=(0, 1), at="t:1") for name in mine]
        for site in sites[: 3 if watch is watches[0] else 1]:
            site.leave()
            site.enter()
    reports = {}
    for n, reporter in enumerate(map(Reporter, watches)):
        reports[n] = reporter.changes() | reporter.changes()  # the keys follow
    assert [reports[n]["sites"][0][1] for n in (0, 1)] == ["c", "x"]
    failure = run(board(2), reports, 20)
    assert (failure.kind, failure.rank) == ("diverged", 1)


def test_ranks_that_wait_in_a_circle() -> None:
    places = {
        0: place("x", 4, (0, 1)),
        1: place("y", 2, (1, 2)),
        2: place("z", 8, (0, 2)),
    }
    failure = run(board(), places, 20)
    assert (failure.kind, failure.rank) == ("diverged", 0)
    assert (
        "diverged: ranks wait in a circle: rank 0 in 'x' (train.py:9) for rank 1, "
        "rank 1 in 'y' (train.py:9) for rank 2, rank 2 in 'z' (train.py:9) for rank 0\n"
    ) in failure.message


def test_a_rank_that_has_ended_too_early() -> None:
    made = board()
    made.ended(2, 0, place(), 0.1)
    failure = run(made, {0: place("a"), 1: place("a")}, 20)
    assert (failure.kind, failure.rank) == ("ended", 2)


def test_a_rank_that_never_enters_an_exchange() -> None:
    failure = run(board(), {0: place("a"), 1: place("a"), 2: place()}, 100)
    assert (failure.kind, failure.rank) == ("stuck", 2)
    assert "keeps rank 0 waiting in 'a' for 60." in failure.message
    assert "s: ranks 0, 1 wait for rank 2, which waits for none\n" in failure.message


def test_an_exchange_that_all_ranks_are_in() -> None:
    failure = run(board(), dict.fromkeys(range(3), place("a")), 100)
    assert failure.kind == "stuck"
    assert "s: ranks 0, 1, 2 are in 'a' (train.py:9), which all its ranks have entered\n" in (
        failure.message
    )


def at_work(line: str, finished: int = 3) -> dict[str, Any]:
    return {**place(), "line": line, "finished": finished}


def test_ranks_that_make_no_progress_are_reported_ever_more_rarely() -> None:
    """All of them send signs of life and none waits for another one."""
    made, reports = board(), dict[float, str]()
    for now in range(2 * 600):
        for rank in range(3):
            made.beat(rank, at_work(f"train.py:{now % 2}{rank}"), now / 2)
        assert not made.check(now / 2)
        text = made.stalled(now / 2)
        if text is not None:
            reports[now / 2] = text
    assert list(reports) == [60, 120, 240, 480]
    first = reports[60]
    assert first.startswith("no step has finished for 60 s\n  rank 0: on host-a, at work at step 7")
    assert [f"(train.py:0{rank})" in first for rank in range(3)] == [True] * 3
    for rank in range(3):
        made.beat(rank, at_work("train.py:9", finished=4), 600)
    assert made.stalled(659) is None
    assert made.stalled(660) is not None


def test_a_report_names_the_rank_that_is_elsewhere() -> None:
    made = board()
    for rank in range(3):
        made.beat(rank, at_work("loop.py:4") if rank == 1 else place("loss"), 1)
    made.beat(0, {**place("loss"), "line": "train.py:3"}, 60)
    text = made.stalled(61)
    assert text is not None
    cause = "ranks 0, 2 wait for rank 1, which waits for none"
    assert text.startswith(f"no step has finished for 60 s; {cause}\n")
    assert "in 'loss' (train.py:9), all_reduce float32[4], waiting for ranks 0, 1, 2" in text
    assert ", called at train.py:3" in text


def test_a_report_on_ranks_that_do_not_wait_names_the_rank_with_another_line() -> None:
    made = board()
    for rank in range(3):
        made.beat(rank, at_work("loop.py:4" if rank == 1 else "train.py:3"), 1)
    text = made.stalled(61)
    assert text is not None
    assert text.startswith("no step has finished for 60 s; rank 1 is not where most ranks are\n")


def test_ranks_that_make_no_progress_may_be_stopped() -> None:
    limits = Limits(stall=10, stall_limit=25)
    made = Board(2, limits, 0.0)
    for rank in range(2):
        made.joined(rank, "host", "::1", 0.0)
    failure = run(made, {rank: at_work("train.py:3") for rank in range(2)}, 100)
    assert (failure.kind, failure.rank) == ("stalled", -1)
    assert failure.message.startswith("no step has finished for 2")
    assert "  rank 1: on host, at work at step 7 (train.py:3)" in failure.message


def test_jobs_that_have_ended_do_not_stall() -> None:
    made = board(size=2)
    for rank in range(2):
        made.ended(rank, 0, at_work("train.py:3"), 1)
    assert made.stalled(1000) is None


def test_a_rank_that_never_joins() -> None:
    made = Board(2, LIMITS, 0.0)
    made.joined(0, "a", "::1", 0.0)
    failure = run(made, {0: place()}, 100)
    assert (failure.kind, failure.rank, failure.host) == ("missing", 1, "?")
    assert "rank 1: never joined" in failure.message


def test_suspended_time_is_discounted() -> None:
    made = board()
    made.discount(100.0)
    assert not made.check(104.0)
    assert made.check(106.0)


def test_a_job_that_ends_well() -> None:
    made = board()
    for rank in (1, 0, 2):
        assert not made.over
        made.ended(rank, 0, place(), 1.0)
        made.lost(rank, 1.1)
    assert made.over
    assert not made.check(1000.0)
    assert made.verdict(1000.0) is None


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(GROUPS), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_no_verdict_on_a_healthy_job(groups: list[tuple[int, ...]], seed: int) -> None:
    """Any groups, any speeds: a rank enters its next exchange when its last one was complete."""
    made, random = Board(4, LIMITS, 0.0), Random(seed)
    watches = [Watch() for _ in range(4)]
    reporters = [Reporter(watch) for watch in watches]
    todo: list[list[tuple[int, Site]]] = []
    for rank, watch in enumerate(watches):
        made.joined(rank, "h", "::1", 0.0)
        own = [(n, g) for n, g in enumerate(groups) if rank in g]
        todo.append([(n, watch.site(f"op{n}", "x", ranks=g, at="t:1")) for n, g in own])
    now, entered = 0.0, [set[int]() for _ in groups]
    while any(todo):
        now += random.uniform(0.1, 0.9)
        for rank in random.sample(range(4), 4):
            for _ in range(random.randint(0, 2)):
                _advance(rank, todo[rank], entered, groups)
            made.beat(rank, reporters[rank].changes(), now)
        assert not made.check(now), made.verdict(now)


def _advance(
    rank: int,
    todo: list[tuple[int, Site]],
    entered: list[set[int]],
    groups: list[tuple[int, ...]],
) -> None:
    if not todo:
        return
    number, site = todo[0]
    if rank not in entered[number]:
        entered[number].add(rank)
        site.enter()
    elif entered[number] == set(groups[number]):
        site.leave()
        todo.pop(0)


def test_a_site_makes_few_calls_and_keeps_no_objects() -> None:
    import tracemalloc

    site = Watch().site("op", "x", ranks=(0, 1), at="t:1")
    tracemalloc.start()
    try:
        for _ in range(10):
            site.enter()
            site.leave()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            site.enter()
            site.leave()
        assert tracemalloc.get_traced_memory()[0] - before < 200  # two counters, no records
    finally:
        tracemalloc.stop()


def test_a_report_names_the_line_of_the_main_thread() -> None:
    assert Reporter(Watch()).changes()["line"].startswith(__file__)


def test_an_error_leaves_the_place() -> None:
    watch = Watch()
    with pytest.raises(KeyError), watch.site("op", "x", ranks=(0, 1)):
        raise KeyError
    assert Reporter(watch).changes()["sites"][0][1] == "op"
