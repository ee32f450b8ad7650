"""Ranks that hang in data, tensor and pipeline parallel training, simulated without processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from flow_dist.control.board import Board, Limits
from flow_dist.control.report import Reporter
from flow_dist.control.wait_graph import WaitGraph
from flow_dist.control.watch import Site, Watch

LIMITS = Limits(stall=4, exchange=60)
LAYOUTS = [(d, t, p) for d in (1, 2, 3) for t in (1, 2, 4) for p in (1, 2, 4) if 3 < d * t * p < 25]
FAULTS = ("works", "inside", "skips", "swaps")
TICK = 0.25


@dataclass(frozen=True)
class Action:
    """An exchange in which a rank takes part; a sender whose message is buffered waits for none."""

    op: str
    ranks: tuple[int, ...]
    waits: bool = True

    @property
    def team(self) -> tuple[tuple[int, ...], str]:
        """The ranks and the lane: forward and backward messages have orders of their own."""
        return self.ranks, self.op.split()[0]


@dataclass(frozen=True)
class Layout:
    """Ranks of a grid: data, tensor and pipeline parallelism; a step has several micro-batches."""

    data: int
    tensor: int
    stages: int
    micro_batches: int
    interleaved: bool
    buffered: bool

    @property
    def size(self) -> int:
        return self.data * self.tensor * self.stages

    def rank(self, d: int, t: int, p: int) -> int:
        return (d * self.stages + p) * self.tensor + t

    def step(self, rank: int) -> list[Action]:
        """The exchanges of one step, in order."""
        replica, t = divmod(rank, self.tensor)
        d, p = divmod(replica, self.stages)
        actions = [a for kind, _ in self._order(p) for a in self._pass(kind, d, t, p)]
        if self.data > 1:
            replicas = tuple(self.rank(other, t, p) for other in range(self.data))
            actions.append(Action("gradients", replicas))
        return [*actions, Action("loss", tuple(range(self.size)))]

    def _order(self, p: int) -> Iterator[tuple[str, int]]:
        """Forward and backward passes of the micro-batches of a stage, all forward or 1F1B."""
        ahead = min(self.stages - p, self.micro_batches) if self.interleaved else self.micro_batches
        for m in range(self.micro_batches + ahead):
            if m < self.micro_batches:
                yield "forward", m
            if m >= ahead - 1 and m - ahead + 1 < self.micro_batches:
                yield "backward", m - ahead + 1

    def _pass(self, kind: str, d: int, t: int, p: int) -> Iterator[Action]:
        way = 1 if kind == "forward" else -1
        own, source, target = (self.rank(d, t, q) for q in (p, p - way, p + way))
        if 0 <= p - way < self.stages:
            yield Action(f"{kind} to {p}", tuple(sorted((source, own))))
        if self.tensor > 1:
            yield Action(
                f"{kind} sum {p}", tuple(self.rank(d, other, p) for other in range(self.tensor))
            )
        if 0 <= p + way < self.stages:
            ends = tuple(sorted((own, target)))
            waits = not (self.buffered or self.interleaved)  # else two senders wait for each other
            yield Action(f"{kind} to {p + way}", ends, waits)


@dataclass
class Simulated:
    """A rank with its remaining exchanges."""

    watch: Watch
    todo: list[tuple[Action, int]]
    sites: dict[Action, Site] = field(default_factory=dict)
    entered: bool = False
    stuck: bool = False


class Job:
    """Ranks that train until one of them fails in some way.

    Args:
        layout: the layout of the ranks.
        fault: "works": the rank never enters an exchange; "inside": it never leaves one that all
            have entered; "skips": it leaves one out; "swaps": it takes two in the wrong order.
        rank, at: the rank, and the number of its exchange.
        random: draws the speeds of the ranks.
    """

    STEPS = 3

    def __init__(self, layout: Layout, fault: str, rank: int, at: int, random: Random) -> None:
        self.fault, self.rank, self.at, self.random = fault, rank, at, random
        self.board = Board(layout.size, LIMITS, 0.0)
        self.ranks = []
        for n in range(layout.size):
            self.board.joined(n, "h", "::1", 0.0)
            step = layout.step(n)
            todo = [
                (action, len(step) * s + i)
                for s in range(self.STEPS)
                for i, action in enumerate(step)
            ]
            self.ranks.append(Simulated(Watch(), todo))
            for action in step:
                site = self.ranks[n].watch.site
                self.ranks[n].sites[action] = site(
                    action.op, "x", ranks=action.ranks, at=action.op, lane=action.team[1]
                )
        todo = self.ranks[rank].todo
        self.action = todo[at][0]
        if fault == "skips":
            del todo[at]
        elif fault == "swaps":
            todo[at : at + 2] = todo[at : at + 2][::-1]
        self.counts: list[Counter[object]] = [Counter() for _ in self.ranks]
        self.reporters = [Reporter(simulated.watch) for simulated in self.ranks]
        self.now = 0.0

    def run(self) -> bool:
        """Run until nothing moves; return whether ranks hang."""
        while self._tick():
            assert not self.board.check(self.now), self.board.verdict(self.now)
        return any(simulated.todo for simulated in self.ranks)

    def _tick(self) -> bool:
        self.now += TICK
        order = self.random.sample(range(len(self.ranks)), len(self.ranks))
        moved = [n for n in order for _ in range(self.random.randint(1, 9)) if self._advance(n)]
        for n in order[:: 2 if moved else 1]:
            self.board.beat(n, self.reporters[n].changes(), self.now)
        return bool(moved)

    def _advance(self, n: int) -> bool:
        own = self.ranks[n]
        if not own.todo or own.stuck:
            return False
        action, number = own.todo[0]
        here = n == self.rank and number == self.at
        if not own.entered:
            if here and self.fault == "works":
                return False
            own.sites[action].enter()
            self.counts[n][action.team] += 1
            own.entered = True
            return True
        own_count = self.counts[n][action.team]
        complete = all(self.counts[m][action.team] >= own_count for m in action.ranks)
        if (action.waits and not complete) or (here and self.fault == "inside"):
            return False
        own.sites[action].leave()
        own.entered = False
        own.todo.pop(0)
        if action.op == "loss":
            own.watch.steps += 1
            own.watch.finished += 1
        return True

    def reported(self) -> tuple[float, str]:
        """Continue to report; return after which time a cause is named, and how."""
        began = self.now
        while True:
            self.now += TICK
            for n, reporter in enumerate(self.reporters):
                self.board.beat(n, reporter.changes(), self.now)
            if self.board.check(self.now):
                failure = self.board.verdict(self.now)
                assert failure is not None
                return self.now - began, failure.message.splitlines()[0]
            text = self.board.stalled(self.now)
            if text is not None:
                return self.now - began, text.splitlines()[0]


def draw(random: Random) -> Job:
    """A job of a random layout with a random fault."""
    d, t, p = random.choice(LAYOUTS)
    layout = Layout(d, t, p, random.randint(1, 4), random.random() < 0.5, random.random() < 0.5)
    rank, fault = random.randrange(layout.size), random.choice(FAULTS)
    at = random.randrange(len(layout.step(rank)) * (Job.STEPS - 1))
    return Job(layout, fault, rank, at, random)


def hangs(number: int) -> Iterator[Job]:
    """Jobs of which each hangs; some skipped or swapped exchanges have no effect."""
    random, found = Random(39), 0
    while found < number:
        job = draw(random)
        if job.run():
            found += 1
            yield job


def is_named(job: Job, text: str) -> bool:
    """Return whether a text blames the right rank, and in a circle names its missing exchange."""
    if job.fault == "works":
        return bool(re.search(rf" waits? for rank {job.rank}, which waits for none$", text))
    op = rf"in '{job.action.op}' \([^)]*\)"
    if job.fault == "inside":
        return bool(
            re.search(rf"; rank {job.rank} is {op}, which all its ranks have entered$", text)
        )
    first = str(job.rank) if len(job.action.ranks) > 2 else ""  # of two, either may be wrong
    missing = re.search(rf"\brank \d+ {op} for rank {job.rank}\b", text)
    return missing is not None and f"ranks wait in a circle: rank {first}" in text


@pytest.mark.slow
def test_the_cause_of_a_hundred_hangs_is_named() -> None:
    faults: Counter[str] = Counter()
    for job in hangs(100):
        seconds, text = job.reported()
        told = f"{job.fault} {job.action} of rank {job.rank} after {seconds:.1f} s: {text}"
        assert seconds <= 2 * LIMITS.stall, told
        assert is_named(job, text), told
        faults[job.fault] += 1
    assert min(faults[fault] for fault in FAULTS) > 9


def test_a_circle_without_a_rank_that_is_on_all_circles() -> None:
    """Two circles that share no rank; the lowest one is described."""
    board = Board(4, LIMITS, 0.0)
    for n in range(4):
        board.joined(n, "h", "::1", 0.0)
        watch, pair = Watch(), (n // 2 * 2, n // 2 * 2 + 1)
        watch.site(f"op{n}", "x", ranks=pair, at="t:1", lane=str(n)).enter()
        board.beat(n, Reporter(watch).changes(), 0.0)
    cause = WaitGraph(board.ranks).cause()
    assert cause is not None
    assert (cause.rank, cause.is_circle) == (0, True)
    assert cause.text.endswith("rank 0 in 'op0' (t:1) for rank 1, rank 1 in 'op1' (t:1) for rank 0")


def test_a_graph_of_thousands_of_ranks() -> None:
    """A ring: each rank waits for the next one, and the last for the first or for none."""
    size = 3000
    for last, is_circle in ((size, True), (size - 1, False)):
        board = Board(size, LIMITS, 0.0)
        for n in range(size):
            board.joined(n, "h", "::1", 0.0)
            watch = Watch()
            if n < last:
                watch.site("ring", "x", ranks=(n, (n + 1) % size), at="t:1").enter()
            board.beat(n, Reporter(watch).changes(), 0.0)
        cause = WaitGraph(board.ranks).cause()
        assert cause is not None
        assert cause.is_circle == is_circle
        assert cause.rank == (0 if is_circle else size - 1)
