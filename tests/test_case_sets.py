"""The fixed set of cases that CI runs, its complement, and subsets of tests."""

from __future__ import annotations

import re

import pytest
from suite import representative

pytest_plugins = ["pytester"]
CASES = """
import pytest

@pytest.mark.representative(r"\\[[37]\\]", "odd primes")
@pytest.mark.parametrize("n", range(200))
def test_many(n): assert n != 5

@pytest.mark.parametrize("n", range(5))
def test_few(n): pass

def test_alone(): pass

@pytest.mark.exhaustive
def test_long(): pass
"""
PLUGINS = ("-p", "suite.representative", "-p", "no:xdist")
MARKERS = "markers =\n    representative(expression, reason): some\n    exhaustive: all"


def ran(pytester: pytest.Pytester, *options: str) -> dict[str, set[str]]:
    """Return the cases that ran, by test."""
    pytester.makeini(f"[pytest]\n{MARKERS}")
    pytester.makepyfile(test_cases=CASES)
    done = pytester.runpytest_inprocess(
        "-v", "-p", "suite.representative", "-p", "no:xdist", *options
    )
    found: dict[str, set[str]] = {}
    for test, case in re.findall(r"::(\w+)(\[\d+\])? ", done.stdout.str()):
        found.setdefault(test, set()).add(case)
    return found


def test_all_cases_run_by_default(pytester: pytest.Pytester) -> None:
    assert {test: len(cases) for test, cases in ran(pytester).items()} == {
        "test_many": 200, "test_few": 5, "test_alone": 1, "test_long": 1,
    }  # fmt: skip


def test_representatives_and_the_others_are_all_cases(pytester: pytest.Pytester) -> None:
    chosen = ran(pytester, "--cases=representative")
    assert chosen["test_many"] == {"[3]", "[7]"}
    assert {test: len(cases) for test, cases in chosen.items()} == {
        "test_many": 2, "test_few": 5, "test_alone": 1,
    }  # fmt: skip
    others = ran(pytester, "--cases=other")
    assert {test: len(cases) for test, cases in others.items()} == {
        "test_many": 198, "test_long": 1,
    }  # fmt: skip


def test_most_deselected_cases_are_never_made(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\n{MARKERS}")
    pytester.makepyfile(test_cases=CASES)
    done = pytester.runpytest_inprocess(*PLUGINS, "--cases=representative")
    done.stdout.fnmatch_lines(["collected 9 items / 1 deselected / 8 selected"])


def test_a_failed_case_shows_how_to_add_it(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\n{MARKERS}")
    pytester.makepyfile(test_cases=CASES)
    done = pytester.runpytest_inprocess(
        "-p", "suite.representative", "-p", "no:xdist", "-k", "test_many"
    )
    done.stdout.fnmatch_lines(["*mark.representative(r*7*5*, 'odd primes')"])


def test_a_marker_that_names_no_case_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\n{MARKERS}")
    pytester.makepyfile(test_cases=CASES.replace("[37]", "x"))
    done = pytester.runpytest_inprocess(*PLUGINS, "--cases=representative")  # fmt: skip
    assert done.ret == pytest.ExitCode.INTERNAL_ERROR
    done.stdout.fnmatch_lines(["*ValueError: *test_cases.py: representative(*) matches no case"])


def test_subsets_partition_the_tests(pytester: pytest.Pytester) -> None:
    first, second = (ran(pytester, f"--subset={k}/2") for k in (0, 1))
    assert first.keys() | second.keys() == {"test_many", "test_few", "test_alone", "test_long"}
    assert not first.keys() & second.keys()


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1", "a/b"])
def test_subsets_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        representative.subset_of(text)
