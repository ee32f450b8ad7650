"""Pipeline waits: leaked or late tokens cause no hang."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.errors import JobError
from flow_core.runtime.pipeline import Credit, Pipeline, Step

pytestmark = pytest.mark.timeout(300)


class Work:
    """Record the steps and wait for a gate."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        self.gate.wait(processes.scaled(10))
        self.ran.append(feeds[0])
        return (feeds[0],)


def step(work: Work, number: int, credit: Credit, deliver: Any = None, release: Any = None) -> Step:
    return Step(work, [number], credit, deliver, release)


Move = tuple[str, int]


@settings(max_examples=60)
@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    moves=st.lists(
        st.tuples(st.sampled_from(("submit", "run", "sync", "still")), st.integers(0, 2)),
        max_size=40,
    ),
)
def test_any_sequence_of_calls_preserves_the_order(widths: list[int], moves: list[Move]) -> None:
    pipeline, work = Pipeline(), Work()
    credits, delivered = [Credit(w) for w in widths], []
    for number, (move, k) in enumerate(moves):
        credit = credits[k % len(credits)]
        new = step(work, number, credit, lambda s: delivered.append(s.results[0]))
        if move == "submit":
            pipeline.submit(new)
        elif move == "run":
            pipeline.run(new)
            assert delivered[-1] == number
        elif move == "sync":
            pipeline.sync()
        else:
            with pipeline.quiesced():
                assert pipeline.in_flight == 0
    assert pipeline.close() == ()
    wanted = [i for i, (move, _) in enumerate(moves) if move in ("submit", "run")]
    assert work.ran == delivered == wanted
    assert all(c.peak <= c.width for c in credits)
    assert all(not c.holders for c in credits)


class HeldUp(Pipeline):
    """A pipeline whose threads are suspended before they return a token."""

    def release_token(self, step: Step) -> None:
        time.sleep(0.05)
        super().release_token(step)


def ended(over: Callable[[], bool]) -> None:
    while not over():
        time.sleep(0.0005)


def test_finished_step_holds_no_token() -> None:
    """Otherwise the next step would find more steps in flight than allowed."""
    waits: list[Callable[[Pipeline, Step], None]] = [
        lambda p, s: p.wait_for(s),
        lambda p, s: p.sync(),
    ]
    for wait in waits:
        pipeline, credit = HeldUp(), Credit(1)
        fed = step(Work(), 0, credit)
        pipeline.submit(fed)
        ended(lambda fed=fed: fed.done)
        wait(pipeline, fed)
        assert pipeline.in_flight == 0
        pipeline.run(step(Work(), 1, credit))
        assert credit.peak == 1
        pipeline.close()


def test_synchronous_step_and_its_token_end_together() -> None:
    pipeline, credit = HeldUp(), Credit(1)
    only = step(Work(), 0, credit)
    runner = threading.Thread(target=pipeline.run, args=[only])
    runner.start()
    ended(lambda: only.done)
    time.sleep(0.01)
    pipeline.sync()
    assert pipeline.in_flight == 0
    runner.join(processes.scaled(10))
    pipeline.close()


def test_delivery_that_waits_for_its_user_is_released() -> None:
    """As for handles that are never read: a wait for a later step must not depend on them."""
    waits: list[Callable[[Pipeline, Step], None]] = [
        lambda p, s: p.wait_for(s),
        lambda p, s: p.sync(),
        lambda p, s: p.run(step(Work(), 9, Credit(1))),
    ]
    for wait in waits:
        pipeline, work, credit, user = Pipeline(), Work(), Credit(2), threading.Event()
        pipeline.submit(
            step(work, 0, credit, lambda _, u=user: u.wait(processes.scaled(10)), user.set)
        )
        later = step(work, 1, credit)
        pipeline.submit(later)
        wait(pipeline, later)
        assert user.is_set()
        assert work.ran == [0, 1]
        pipeline.close()


def test_lost_token_does_not_hang() -> None:
    """An interrupt may occur between taking a token and feeding the step."""
    pipeline, work, credit = Pipeline(), Work(), Credit(2)
    lost = step(work, 0, credit)
    pipeline.reserve(lost)
    pipeline.submit(step(work, 1, credit))
    pipeline.sync()
    pipeline.run(step(work, 2, credit))
    assert pipeline.in_flight == 1
    pipeline.give_up(lost)
    pipeline.give_up(lost)
    assert pipeline.in_flight == 0
    assert pipeline.close() == ()
    assert work.ran == [1, 2]


def test_canceling_a_step_in_flight_has_no_effect() -> None:
    pipeline, work, credit = Pipeline(), Work(), Credit(1)
    work.gate.clear()
    fed = step(work, 0, credit)
    pipeline.submit(fed)
    pipeline.give_up(fed)
    assert pipeline.in_flight == 1
    work.gate.set()
    pipeline.close()
    assert work.ran == [0]


def test_quiesced_pipeline_runs_no_steps() -> None:
    pipeline, work, credit = Pipeline(), Work(), Credit(4)
    with pipeline.quiesced():
        feeder = threading.Thread(
            target=lambda: [pipeline.submit(step(work, i, credit)) for i in (0, 1)]
        )
        feeder.start()
        feeder.join(processes.scaled(10))
        time.sleep(0.05)
        assert work.ran == []
    pipeline.close()
    assert work.ran == [0, 1]


def test_closing_returns_unreported_errors() -> None:
    def broken(_: Step) -> None:
        raise ValueError("first")

    pipeline, credit = Pipeline(), Credit(3)
    pipeline.submit(step(Work(), 0, credit, broken))
    pipeline.submit(step(Work(), 1, credit, broken))
    errors = pipeline.close()
    assert [str(e) for e in errors] == ["first", "first"]


def test_waits_for_itself_are_rejected() -> None:
    pipeline, credit, work = Pipeline(), Credit(4), Work()
    refused: list[str] = []
    later = step(work, 1, credit)

    def callback(_: Step) -> None:
        for act in (lambda: pipeline.wait_for(later), pipeline.close):
            with pytest.raises(JobError) as caught:
                act()
            refused.append(caught.value.attempted)
        pipeline.sync()  # returns immediately here
        pipeline.run(step(work, 7, credit))

    work.gate.clear()
    pipeline.submit(step(work, 0, credit, callback))
    pipeline.submit(later)
    work.gate.set()
    pipeline.sync()
    assert refused == [
        "waiting for a step inside a callback",
        "clearing the session inside a callback",
    ]
    assert sorted(work.ran) == [0, 1, 7]
    pipeline.close()
