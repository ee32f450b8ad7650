"""Reports of changes: complete for the server, and short."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_dist.control.ranges import from_runs, pack_equal, to_runs, unpack_equal
from flow_dist.control.report import MAX_GROUPS, MAX_RUNS, Names, Position, Reporter
from flow_dist.control.watch import HISTORY, Watch
from flow_dist.control.wire import pack


@given(st.sets(st.integers(0, 200)))
def test_ranks_survive_runs(ranks: set[int]) -> None:
    ordered = sorted(ranks)
    assert list(from_runs(to_runs(ordered))) == ordered


def test_regular_groups_are_one_run() -> None:
    for ranks in (range(4096), range(5, 4096, 8), range(8, 16), range(3, 4)):
        assert to_runs(ranks) == [[ranks[0], ranks[-1] + 1, ranks.step if len(ranks) > 1 else 1]]


@given(st.lists(st.sampled_from([None, 1, True, "a", [1], {"a": 1}])))
def test_values_survive_packing(values: list[object]) -> None:
    assert repr(unpack_equal(pack_equal(values))) == repr(values)


def test_a_report_of_an_unchanged_position_is_empty() -> None:
    watch = Watch()
    reporter = Reporter(watch)
    site = watch.site("loss", "x", ranks=range(4096), at="t.py:1")
    site.enter()
    reports = [_changes(reporter) for _ in range(4)]
    assert reports[0]["teams"] == [[0, [[0, 4096, 1]], ""]]
    assert list(reports[1]) == ["counts"]  # the keys of its exchanges
    assert reports[2:] == [{}, {}]


def _changes(reporter: Reporter) -> dict[str, object]:
    """The changes, reported from the same line each time."""
    return reporter.changes()


def test_training_sends_counts_only() -> None:
    watch = Watch()
    reporter = Reporter(watch)
    sites = [watch.site(f"op{n}", "x", ranks=(0, n), at="t.py:1") for n in range(1, 4)]
    sizes = []
    for _ in range(3):
        for site in sites * 100:
            with site:
                pass
        watch.steps += 100
        sizes.append(len(pack(_changes(reporter))))
    assert sizes[1] < 120


def test_many_groups_are_reported_in_turns() -> None:
    watch, position, names = Watch(), Position(), Names(4000)
    reporter = Reporter(watch)
    sites = [watch.site("op", "x", ranks=(0, n), at="t.py:1") for n in range(1, 3 * MAX_GROUPS)]
    for site in sites:
        with site:
            pass
    sites[-1].enter()
    position.update(reporter.changes(), names)
    assert position.place is not None
    assert position.place.team.ranks[1] == len(sites)
    for _ in range(6):
        position.update(reporter.changes(), names)
    assert len(position.counts) == len(position.keys) == len(sites)
    assert all(len(keys) == 8 for keys in list(position.keys.values())[1:])


@pytest.mark.slow
def test_groups_of_scattered_ranks_fit_into_messages() -> None:
    watch, random = Watch(), Random(1)
    for _ in range(40):
        ranks = random.sample(range(30_000), 9_000)
        with watch.site("op", "x", ranks=ranks, at="t.py:1"):
            pass
    reporter = Reporter(watch)
    runs = 0
    while changes := _changes(reporter):
        assert len(pack({"is": "beat", "report": changes})) < 1 << 20
        runs = max(runs, sum(len(team[1]) for team in changes.get("teams", ())))
    assert runs > MAX_RUNS


@given(st.integers(1, 3 * HISTORY))
def test_the_keys_are_those_of_the_last_exchanges(count: int) -> None:
    watch = Watch()
    sites = [watch.site(f"op{n}", "x", ranks=(0, 1), at="t.py:1") for n in range(count)]
    for site in sites:
        with site:
            pass
    (group,) = watch.groups()
    keys = group.keys(count)
    assert keys == [site._key for site in sites][-len(keys) :]
    assert len(keys) == min(count, HISTORY - 1)
    assert group.keys(count - 1) == []


def test_equal_descriptions_are_one_object() -> None:
    names = Names(8)
    first, second = Position(), Position()
    report = {
        "teams": [[0, [[0, 8, 2]], "lane"]],
        "sites": [[4, "op", "x", "t.py:1", 0]],
        "site": 4,
        "counts": [[0, 3]],
    }
    first.update(report, names)
    second.update({**report, "teams": [*report["teams"], [1, [[0, 8, 1]], ""]]}, names)
    assert first.place is second.place
    assert first.counts == second.counts
    with pytest.raises(KeyError):
        second.counts[names.team([[0, 8, 1]], "")]
