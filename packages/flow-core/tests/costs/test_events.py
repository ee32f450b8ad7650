"""The event loop: rendezvous of queues, shared resources, and its use for orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.costs.events import EventLoop, InOrder, Run
from flow_core.ir.order import Dependencies


def ran(
    lanes: Mapping[str, Sequence[int]],
    seconds: Mapping[int, float],
    waits: Mapping[int, set[int]] | None = None,
    shared: Mapping[int, Sequence[str]] | None = None,
    units: Mapping[str, int] | None = None,
    limit: int = 0,
) -> Run[int]:
    before = {i: set[int]() for items in lanes.values() for i in items} | dict(waits or {})
    queues_of = {i: [name for name, items in lanes.items() if i in items] for i in before}
    queues = {name: InOrder(items) for name, items in lanes.items()}
    progress = Dependencies(before)
    loop = EventLoop(progress, queues, queues_of, seconds.__getitem__, float, shared, units, limit)
    return loop.run()


def test_an_item_of_two_queues_starts_when_both_have_reached_it() -> None:
    run = ran({"a": [0, 2, 3], "b": [1, 2, 4]}, {0: 1.0, 1: 5.0, 2: 2.0, 3: 1.0, 4: 1.0})
    assert run.start == {0: 0.0, 1: 0.0, 2: 5.0, 3: 7.0, 4: 7.0}
    assert run.now == 8.0


def test_items_that_share_a_resource_divide_its_speed() -> None:
    lanes, uplink = {"a": [0], "b": [1], "c": [2]}, {0: ["up"], 1: ["up"]}
    run = ran(lanes, {0: 2.0, 1: 4.0, 2: 3.0}, shared=uplink)
    assert run.end == {0: 4.0, 2: 3.0, 1: 6.0}  # 1 has 2 s left when 0 ends
    later = ran({"a": [3, 0], "b": [1]}, {3: 3.0, 0: 2.0, 1: 4.0}, shared=uplink)
    assert later.end == pytest.approx({3: 3.0, 1: 5.0, 0: 6.0})


def test_items_that_need_more_units_than_there_are_divide_them() -> None:
    """Two cores: item 2 needs both, and waits for none."""
    lanes = {"a": [0], "b": [1], "c": [2]}
    shared = {0: ["core"], 1: ["core"], 2: ["core", "core"]}
    alone = ran({"c": [2]}, {2: 3.0}, shared=shared, units={"core": 2})
    assert alone.now == 3.0
    run = ran(lanes, {0: 1.0, 1: 2.0, 2: 3.0}, shared=shared, units={"core": 2})
    assert run.end == pytest.approx({0: 2.0, 1: 3.5, 2: 4.5})


def test_threads_limit_the_busy_queues() -> None:
    lanes = {"a": [0, 3], "b": [1], "c": [2]}
    run = ran(lanes, {0: 1.0, 1: 3.0, 2: 2.0, 3: 1.0}, limit=2)
    assert run.start == {0: 0.0, 1: 0.0, 3: 1.0, 2: 2.0}
    assert run.now == 4.0


def test_items_that_wait_for_each_other_do_not_start() -> None:
    assert ran({"a": [0, 1]}, {0: 1.0, 1: 1.0}, {0: {1}}).end == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 5), st.sets(st.integers(1, 4), max_size=2)),
        min_size=1,
        max_size=20,
    )
)
def test_clock_of_lanes_equals_a_recurrence(rows: list[tuple[int, int, set[int]]]) -> None:
    """An item starts when its lane is free and all items that it waits for have ended."""
    waits = {i: {i - back for back in backs if back <= i} for i, (_, _, backs) in enumerate(rows)}
    lanes: dict[str, list[int]] = {}
    free: dict[str, float] = {}
    end: dict[int, float] = {}
    for i, (lane, seconds, _) in enumerate(rows):
        name = f"lane {lane}"
        lanes.setdefault(name, []).append(i)
        start = max([free.get(name, 0.0), *(end[j] for j in waits[i])])
        end[i] = free[name] = start + seconds
    run = ran(lanes, {i: float(row[1]) for i, row in enumerate(rows)}, waits)
    assert run.end == end
    assert [run.start[i] for i in run.started] == sorted(run.start.values())
