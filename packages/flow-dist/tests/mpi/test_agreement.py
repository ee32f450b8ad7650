"""Processes that diverge detect it in the same step; processes that do not are never stopped."""

import os
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import HELPERS, launcher, mpich, run_script

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import FeedsDifferError, ProcessesDifferError
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.mpi.agreement import (
    COLLECTIVES,
    LANES,
    Agreement,
    Job,
    _error,
    digest,
    next_full,
    sample,
)
from flow_dist.shm.counters import CACHE_LINE, TOTAL_STORE_ORDER
from flow_dist.shm.event_log import (
    HISTORY,
    MAX_PENDING,
    AllgatherEventLog,
    EventLog,
    SharedEventLog,
    _line,
)
from flow_dist.shm.memory import Segment

# --------------------------------------------------------------------------------------- digests


@given(st.data())
def test_a_digest_detects_each_changed_element(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(1,), (7, 3), (5000,), (3, 1, 700), (64, 33)]))
    dtype = as_dtype(data.draw(st.sampled_from(["float32", "int8", "float64", "bfloat16"]))).numpy
    one = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    layout = data.draw(st.sampled_from([np.ascontiguousarray, np.asfortranarray]))
    other = layout(one.copy())
    assert digest(one) == digest(other)
    at = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    other[at] = -1 - one[at]
    assert digest(one) != digest(other)


def test_digests_of_shapes_and_of_tensors() -> None:
    row = np.arange(6, dtype=np.float32)
    assert digest(row) != digest(row.reshape(2, 3))
    assert digest(np.zeros((0, 3))) != digest(np.zeros((3, 0)))
    assert digest(np.float32(1).reshape(())) != digest(np.float32(2).reshape(()))
    tensors = np.empty(2, object)
    tensors[:] = [row, row[:2]]
    others = np.empty(2, object)
    others[:] = [row, row[1:3]]
    assert digest(tensors) == digest(tensors.copy()) != digest(others)
    assert sample(tensors, 0) == sample(others, 0)
    assert sample(tensors, 1) != sample(others, 1)


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_samples_tell_batches_apart_and_come_everywhere(layout: Callable[..., Any]) -> None:
    shape = (50, 13)
    one, other = (np.random.default_rng(i).standard_normal(shape) for i in range(2))
    assert all(sample(one, n) != sample(layout(other), n) for n in range(100))
    assert all(sample(one, n) == sample(layout(one), n) for n in range(100))
    found = set()
    for at in range(one.size):
        changed = one.copy()
        changed.flat[at] = 0
        found.add(any(sample(one, n) != sample(changed, n) for n in range(one.size)))
    assert found == {True}


def test_when_all_that_is_fed_is_compared() -> None:
    calls, found = 0, []
    while calls <= 5000:
        calls = next_full(calls, "sometimes")
        found.append(calls)
        calls += 1
    assert found == [0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120]
    assert [next_full(n, "always") for n in (0, 9, 5000)] == [0, 9, 5000]
    assert [next_full(n, "never") for n in (0, 9)] == [-1, -1]


# ----------------------------------------------------------------------------------------- words


def shared(size: int) -> list[SharedEventLog]:
    segments = [Segment(CACHE_LINE) for _ in range(size)]
    order = [[(r + i) % size for i in (1, size - 1, *range(2, size - 1))] for r in range(size)]
    near = min(2, size - 1)
    return [
        SharedEventLog(
            _line(s.bytes, 0), [_line(segments[o].bytes, 0) for o in order[r][: size - 1]], near
        )
        for r, s in enumerate(segments)
    ]


class Post:
    """Collectives among threads: a request is over when all have posted as many."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: list[list[int]] = [[] for _ in range(size)]

    def comm(self, rank: int) -> Any:
        post = self

        class Comm:
            size = post.size

            def __init__(self) -> None:
                self.rank = rank

            def Iallgather(self, own: Any, row: Any) -> Any:
                post.sent[rank].append(int(own[0]))
                number = len(post.sent[rank])

                class Request:
                    def Test(self) -> bool:
                        if min(map(len, post.sent)) < number:
                            return False
                        row[:] = [words[number - 1] for words in post.sent]
                        return True

                return Request()

        return Comm()


def sent(size: int) -> list[AllgatherEventLog]:
    post = Post(size)
    return [AllgatherEventLog(post.comm(rank)) for rank in range(size)]


WAYS = [
    pytest.param(shared, marks=pytest.mark.skipif(not TOTAL_STORE_ORDER, reason="x86 only")),
    sent,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_equal_event_logs(way: Callable[[int], list[EventLog]], size: int) -> None:
    """Whichever process is ahead, and by how much."""
    everybody, random = way(size), np.random.default_rng(1)
    for _ in range(400):
        late = min(words.count for words in everybody)
        words = everybody[random.integers(size)]
        if words.count < late + 9:
            words.post((7, words.count), (None,))
        assert [w.difference() or w.quick_difference() for w in everybody] == [None] * size


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("odd", [0, 2])
def test_all_find_the_first_different_event(way: Callable[[int], list[EventLog]], odd: int) -> None:
    """Also by processes that are not neighbors, are ahead, or are behind."""
    everybody = way(5)
    for number in range(1, 4):
        for words in everybody:
            words.post(number, (None,))
    for rank, words in enumerate(everybody):
        for number in range(4, 7):
            words.post(number + (rank == odd and number == 5), (None,))
    assert {words.difference() for words in everybody[::2]} == {5}
    assert {words.difference() for words in everybody} == {5}


@pytest.mark.skipif(not TOTAL_STORE_ORDER, reason="x86 only")
def test_a_process_far_behind_is_compared() -> None:
    ahead, behind = shared(2)
    for number in range(HISTORY - 1):
        ahead.post(number, (None,))
    behind.post(0, (None,))
    assert ahead.difference() is behind.difference() is None
    behind.post(-1, (None,))
    assert behind.difference() is None, "what the other one had there is in use again"
    assert ahead.difference() == 2
    assert behind.difference() == 2, "but the other one says so"


def test_too_many_pending_collectives_wait() -> None:
    one, other = sent(2)
    for number in range(MAX_PENDING):
        one.post(number, (None,))
    late = threading.Thread(target=one.post, args=(MAX_PENDING, (None,)), daemon=True)
    late.start()
    assert late.is_alive()
    other.post(0, (None,))
    late.join(processes.scaled(10))
    assert one.count == MAX_PENDING + 1


@pytest.mark.skipif(not TOTAL_STORE_ORDER, reason="x86 only")
def test_concurrent_readers_see_no_torn_event_log() -> None:
    """Threads stand for processes: no reader ever sees a hash under the wrong event number."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        _look_meanwhile(2_000)
    finally:
        sys.setswitchinterval(usual)


def _look_meanwhile(events: int) -> None:
    everybody, wrong = shared(2), deque[int]()

    def run(words: SharedEventLog, other: SharedEventLog) -> None:
        for number in range(events):
            while number > other.count + 6:
                wrong.extend(filter(None, [words.difference()]))
                time.sleep(0)
            words.post(number, (None,))
            wrong.extend(filter(None, [words.quick_difference()]))

    threads = [threading.Thread(target=run, args=pair) for pair in (everybody, everybody[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(processes.scaled(60))
    assert not wrong
    assert [words.count for words in everybody] == [events] * 2


# ---------------------------------------------------------------------------------------- errors


def agreements(size: int) -> list[Agreement]:
    """Of processes that are threads, and say what they were doing when all have come."""
    barrier, told = threading.Barrier(size), [None] * size

    def tell(rank: int, own: Any) -> Sequence[Any]:
        told[rank] = own
        barrier.wait(processes.scaled(10))
        return told

    lanes = zip(*(sent(size) for _ in LANES), strict=True)
    return [Agreement(r, w, lambda own, r=r: tell(r, own)) for r, w in enumerate(lanes)]  # type: ignore[misc]


def errors(everybody: Sequence[Agreement]) -> list[ProcessesDifferError]:
    """What each raises."""
    found: dict[int, ProcessesDifferError] = {}

    def look(rank: int) -> None:
        try:
            everybody[rank].check_all()
        except ProcessesDifferError as error:
            found[rank] = error

    threads = [threading.Thread(target=look, args=(rank,)) for rank in range(len(everybody))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(processes.scaled(20))
    return [found[rank] for rank in range(len(everybody))]


X = np.arange(4000, dtype=np.float32)


def jobs(everybody: Sequence[Agreement], name: str, often: str = "sometimes") -> list[Job]:
    return [agreement.job(name, ["x", "y"], often) for agreement in everybody]


def test_another_job_is_named_by_all() -> None:
    everybody = agreements(4)
    train, evaluate = jobs(everybody, "train"), jobs(everybody, "evaluate")
    for rank in range(4):
        train[rank].step = 20
        train[rank]([X, X])
        (evaluate if rank == 2 else train)[rank]([X, X])
    for error in errors(everybody):
        assert "ranks 0, 1, 3 in step 21 of job 'train' (at " in str(error.found)
        assert "; rank 2 in step 0 of job 'evaluate' (at " in str(error.found)
        assert type(error) is ProcessesDifferError
        assert everybody[0].job  # the same agreement raises the same error again
    with pytest.raises(ProcessesDifferError) as again:
        everybody[1].check()
    assert "step 21" in str(again.value)


def test_other_arrays_are_named() -> None:
    everybody = agreements(3)
    for rank, job in enumerate(jobs(everybody, "train")):
        other = X.copy()
        other[777] += rank == 1
        job([X, other])
    for error in errors(everybody):
        assert isinstance(error, FeedsDifferError)
        assert str(error).startswith("feeding 'y' at step 0 of job 'train' in all processes")
        assert "ranks 0, 2 feed one array" in str(error.found)
        assert "; rank 1 feeds another" in str(error.found)
        assert "check_feeds('never')" in str(error.hint)


def test_the_smallest_array_that_changes_is_compared_at_every_step() -> None:
    """So that a process with another batch is found at once."""
    everybody = agreements(2)
    for rank, job in enumerate(jobs(everybody, "train")):
        for call in range(7):
            batch = np.full(4, call - (rank == 1 and call == 6), np.int64)
            job([X, batch])
    assert all("feeding 'y' at step 6 of" in str(error) for error in errors(everybody))


@pytest.mark.parametrize(("often", "found"), [("never", False), ("always", True)])
def test_how_often_is_a_setting(often: str, found: bool) -> None:
    everybody = agreements(2)
    for rank, job in enumerate(jobs(everybody, "train", often)):
        for call in range(7):
            other = X.copy()
            other[5] += rank and call == 6
            job([other, X])
    if found:
        assert all("feeding 'x' at step 6 of" in str(error) for error in errors(everybody))
    else:
        for agreement in everybody:
            agreement.check()
            agreement.check_all()


@pytest.mark.skipif(not TOTAL_STORE_ORDER, reason="x86 only")
def test_a_call_makes_few_calls_and_does_not_wait() -> None:
    """Counted in calls: the other process does nothing at all meanwhile."""
    words = [shared(2)[0] for _ in LANES]
    agreement = Agreement(0, words, lambda own: [])
    job = agreement.job("train", ["x", "labels"], "sometimes")
    batches = [[X, np.full(8, n)] for n in range(6)]
    for batch in batches[:5]:
        job(batch)
    assert words[0].count == 5
    made: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            made.append((event, frame.f_code.co_name))
        elif event == "c_call" and argument is not sys.setprofile:
            made.append((event, argument.__name__))

    sys.setprofile(note)
    try:
        job(batches[5])
        agreement.check()
    finally:
        sys.setprofile(None)
    assert [name for event, name in made if event == "call"] == [
        "__call__", "post", "check", "quick_difference",
    ]  # fmt: skip
    assert {name for event, name in made if event == "c_call"} == {
        "tobytes", "xxh3_64_intdigest", "hash", "append",
    }  # fmt: skip


def test_another_collective() -> None:
    everybody = agreements(2)
    for rank, agreement in enumerate(everybody):
        agreement.enter("a checkpoint" if rank else "variable 'w'")
    for error in errors(everybody):
        assert "rank 0 in variable 'w' (at " in str(error.found)
        assert "; rank 1 in a checkpoint (at " in str(error.found)


def test_other_processes_that_do_not_report() -> None:
    def tell(own: Any) -> Sequence[Any]:
        raise LaunchError("gathering", found="not all of them")

    lanes = [sent(2) for _ in LANES]
    lonely = Agreement(0, [words[0] for words in lanes], tell)
    lonely.enter("a checkpoint")
    lanes[LANES.index(COLLECTIVES)][1].post(0, (None,))
    with pytest.raises(ProcessesDifferError, match="did not report what they run"):
        lonely.check_all()
    with pytest.raises(ProcessesDifferError) as caught:
        lonely.explain(ValueError("an array of another size"))
    lonely.explain(caught.value)


# -------------------------------------------------------------------------------------- programs

PROGRAM = HELPERS / "disagreeing.py"
ARRAYS = r"FeedsDifferError: feeding {} at step {} of job '{}' in all processes \(at .*{}:\d+\)"
FOUND = r"  found:   {} in {} \(at \S+:\d+\); rank {} in {} \(at \S+:\d+\)"


def said(kind: str, processes: int) -> str:
    """What each process says of a kind of difference."""
    last = processes - 1
    rest = "rank 0" if last == 1 else r"ranks? [\d, ]+"  # one may not have come so far
    calls = {
        "job": ("step 5 of job 'train'", "step 5 of job 'evaluate'"),
        "order": ("step 5 of job 'train'", "step 5 of job 'evaluate'"),
        "extra": ("step 5 of job 'evaluate'", "step 6 of job 'train'"),
    }
    arrays = {
        "element": ("'wide'", 0, "train"), "feeds": ("'x', 'y'", 0, "train"),
        "late": ("'x'", 5, "evaluate"), "lone": ("'wide'", 5, "train"),
        "callback": ("'x'", 5, "later"),
    }  # fmt: skip
    if kind in calls:
        one, other = calls[kind]
        return FOUND.format(rest, one, last, other)
    return ARRAYS.format(*arrays[kind], PROGRAM.name)


def slow(*row: object) -> Any:
    return pytest.param(*row, marks=pytest.mark.slow)


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.slow
@pytest.mark.representative("order|job|feeds", "another order of ops, another job, and other feeds")
@pytest.mark.parametrize(
    ("kind", "processes", "policy", "memory"),
    [
        ("order", 2, "sometimes", "1"),
        ("element", 4, "sometimes", "1"),
        ("extra", 2, "sometimes", "0"),
        slow("extra", 2, "sometimes", "1"),
        slow("extra", 4, "sometimes", "1"),
        slow("job", 2, "never", "1"),
        slow("job", 4, "never", "0"),
        slow("feeds", 2, "sometimes", "1"),
        slow("late", 2, "sometimes", "1"),
        slow("lone", 2, "always", "1"),
        slow("callback", 2, "always", "1"),
    ],
)
def test_every_process_says_what_differs(
    kind: str, processes: int, policy: str, memory: str
) -> None:
    launcher()
    env = {"FLOW_CHECK_FEEDS": policy, "FLOW_DIST_SHARED_MEMORY": memory}
    done = run_script(processes, PROGRAM, kind, **env)
    assert done.returncode != 0
    assert not re.search("^done", done.stderr, re.MULTILINE)
    errors = re.findall(said(kind, processes), done.stderr)
    assert len(errors) >= processes, done.stderr


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.slow
@pytest.mark.representative("none|lone", "equal jobs, and a job of one process alone")
@pytest.mark.parametrize(
    ("kind", "processes", "policy", "memory"),
    [
        ("lines", 2, "sometimes", "1"),
        slow("none", 4, "always", "0"),
        slow("element", 2, "never", "1"),
        slow("lone", 2, "sometimes", "1"),
    ],
)
def test_what_is_no_difference(kind: str, processes: int, policy: str, memory: str) -> None:
    """The same calls from other lines, for example, or arrays that may differ."""
    launcher()
    env = {"FLOW_CHECK_FEEDS": policy, "FLOW_DIST_SHARED_MEMORY": memory}
    done = run_script(processes, PROGRAM, kind, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("done") == processes


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.slow
def test_processes_that_compare_as_often() -> None:
    launcher()
    done = run_script(2, PROGRAM, "setting")
    assert done.returncode != 0
    assert "check_feeds: never" in done.stderr
    assert "check_feeds: always" in done.stderr
    assert Path(PROGRAM).name in done.stderr


@pytest.mark.slow
def test_processes_that_join_each_other_end_well() -> None:
    """MPI, which they have started themselves, ends after the last words have come."""
    mpich()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
    env |= {"FLOW_DIST_TOKEN": "secret", "FLOW_DIST_SHARED_MEMORY": "0"}
    command = [sys.executable, str(PROGRAM), "none"]
    ranks = [(command, {**os.environ, **env, "RANK": rank}) for rank in "01"]
    ended = [(done.returncode, done.stderr) for done in processes.run_together(ranks)]
    assert ended == [(0, "done\n")] * 2


def test_a_process_that_is_behind_does_not_differ() -> None:
    def events(*calls: str) -> list[dict[str, Any]]:
        return [{"number": i, "what": call, "at": "", "fed": {}} for i, call in enumerate(calls, 1)]

    lane = LANES[0]
    told = {0: {lane: (2, events("a", "b"))}, 1: {lane: (None, events("a"))},
            2: {lane: (2, events("a", "c"))}}  # fmt: skip
    for rank, own in enumerate("bbc"):
        error = _error(rank, told)
        assert error.attempted == f"comparing {own} with the calls of the other processes"
        assert error.found == "rank 0 in b; rank 2 in c"
