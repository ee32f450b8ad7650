"""Select the fixed set of cases that CI runs; a plugin that the root conftest loads.

``@pytest.mark.representative(expression, reason)`` names the cases of a parametrized test, or of a
kit, that stand for the others: those whose name, such as ``test_agrees[abs-int8]``, matches the
regular expression.  The set depends on the sources alone: it is the same on every machine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import pytest

CASES, SUBSET = "--cases", "--subset"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that select tests and cases."""
    parser.addoption(
        CASES,
        default="all",
        choices=("all", "representative", "other"),
        help="run all cases, those that CI runs, or the others with the exhaustive tests",
    )
    parser.addoption(
        SUBSET,
        default=(0, 1),
        type=subset_of,
        metavar="K/N",
        help="run subset K, from 0, of N fixed subsets of the tests",
    )


def subset_of(text: str) -> tuple[int, int]:
    """Parse the option K/N.

    Raises:
        ValueError: the text has another form, or K is not below N.
    """
    number, count = map(int, text.split("/"))
    if not 0 <= number < count:
        raise ValueError(text)
    return number, count


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create no items for most cases that are deselected: most cases are, and items take time.

    One case remains, which `pytest_collection_modifyitems` deselects: without any, pytest would
    create an item without arguments.
    """
    test, config = metafunc.definition, metafunc.config
    calls = getattr(metafunc, "_calls", [])
    if not in_subset(config, test.nodeid):
        calls[1:] = []
    elif config.getoption(CASES) == "representative" and len(calls) > 1:
        marker = test.get_closest_marker("representative")
        chosen = [
            call
            for call in ([] if test.get_closest_marker("exhaustive") else calls)
            if names(marker, f"{test.name}[{call.id}]")
            and all(mark.name != "exhaustive" for mark in call.marks)
        ]
        calls[:] = chosen or calls[:1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests outside of the subset, and the cases outside of the chosen set.

    Raises:
        ValueError: a marker names no case.
    """
    chosen = [item for item in items if in_subset(config, test_of(item))]
    if config.getoption(CASES) != "all":
        named = {item: is_representative(item) for item in items}
        if config.getoption(SUBSET)[1] == 1:  # tests of other subsets have one case left
            check(named)
        exhaustive = {item for item in chosen if item.get_closest_marker("exhaustive")}
        wanted = config.getoption(CASES) == "representative"
        chosen = [x for x in chosen if (named[x] and x not in exhaustive) == wanted]
    remaining = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in remaining])
    items[:] = chosen


def test_of(item: pytest.Item) -> str:
    """Return the test that an item is a case of."""
    return item.nodeid.partition("[")[0]


def in_subset(config: pytest.Config, test: str) -> bool:
    """Return whether a test is in the subset of the option."""
    number, count = config.getoption(SUBSET)
    return place_of(test) % count == number


def place_of(name: str) -> int:
    """Return a number that the name alone determines."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])


def is_representative(item: pytest.Item) -> bool:
    """Return whether a case has no marker, or one that names it."""
    return names(item.get_closest_marker("representative"), item.name)


def names(marker: pytest.Mark | None, name: str) -> bool:
    """Return whether a marker is missing, or names a case, or the test has no cases."""
    return marker is None or "[" not in name or bool(re.search(marker.args[0], name))


def check(named: dict[pytest.Item, bool]) -> None:
    """Raise an error for a marker of a file that names no case there.

    After `pytest.UsageError`, workers of pytest-xdist would end without a word.
    """
    uses: dict[tuple[str, str], bool] = {}
    for item, chosen in named.items():
        marker = item.get_closest_marker("representative")
        if marker and not item.name.endswith("[NOTSET]"):  # of no cases, as without NVRTC
            use = (str(item.path), marker.args[0])
            uses[use] = uses.get(use, False) or (chosen and "[" in item.name)
    for (path, expression), matches in uses.items():
        if not matches:
            raise ValueError(f"{path}: representative(r{expression!r}) matches no case")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Tell how to add a failed case to the fixed set."""
    report = yield
    marker = item.get_closest_marker("representative")
    if report.failed and marker is not None and not is_representative(item):
        case = re.escape(item.name.partition("[")[2])
        line = f'@pytest.mark.representative(r"{marker.args[0]}|{case}", {marker.args[1]!r})'
        report.sections.append(("to run this case in CI, too", line))
    return report
