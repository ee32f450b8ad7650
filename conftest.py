"""Signal handling for all tests, and the selection of a sample of cases."""

from __future__ import annotations

import copy
import hashlib
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Shells make background jobs ignore Ctrl-C, and programs started by tests inherit that; a Python
# handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SEED, SHARE, SUBSET = "--sample", "--share", "--subset"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for a sample of cases; without them all cases run."""
    parser.addoption(
        SEED,
        default="",
        metavar="SEED",
        help="run a random sample of the cases of parametrized tests, selected by this seed; "
        "'new' draws a seed",
    )
    parser.addoption(
        SHARE,
        default=1.0,
        type=float,
        metavar="SHARE",
        help="with --sample, the share of the cases to run",
    )
    parser.addoption(
        SUBSET,
        default=(0, 1),
        type=subset_of,
        metavar="K/N",
        help="with --sample, run only subset K, from 0, of N random subsets of the tests",
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


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed once for all processes of pytest-xdist."""
    given = getattr(config, "workerinput", {})
    if config.getoption(SEED) == "new":
        config.option.sample = given.get(SEED) or str(random.SystemRandom().randrange(10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed to a process of pytest-xdist."""
    node.workerinput[SEED] = node.config.getoption(SEED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests outside the subset, and the cases outside the sample.

    At least one case of each test of the subset remains.
    """
    seed, share = config.getoption(SEED), config.getoption(SHARE)
    if not seed:
        return
    number, count = config.getoption(SUBSET)
    places = {item: place_of(item.nodeid, seed) for item in items}
    first: dict[str, float] = {}
    for item, place in places.items():
        first[test_of(item)] = min(place, first.get(test_of(item), 1.0))
    chosen = [
        item
        for item, place in places.items()
        if int(place_of(test_of(item), seed) * count) == number
        and (place < share_of(item, share) or place == first[test_of(item)])
    ]
    config.hook.pytest_deselected(items=list(places.keys() - set(chosen)))
    items[:] = chosen


def test_of(item: pytest.Item) -> str:
    """Return the test that an item is a case of."""
    return item.nodeid.partition("[")[0]


def place_of(name: str, seed: str) -> float:
    """Return the position of a test or case between 0 and 1, from the seed and its name alone."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32


def share_of(item: pytest.Item, share: float) -> float:
    """Return the share of a test's cases that are in the sample."""
    marker = item.get_closest_marker("sampled")
    return share * (marker.args[0] if marker else 1.0) if "[" in item.nodeid else 1.0


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the seed of the sample, so that failures can be reproduced."""
    if seed := config.getoption(SEED):
        terminalreporter.write_line(f"a sample of the cases; {SEED} {seed} chooses them again")


@pytest.fixture(autouse=True)
def _one_machine() -> Iterator[None]:
    """Restore the machines of the program, which outlive the default session."""
    yield
    sessions = sys.modules.get("flow_core.frontend.session.session")
    for session in sessions._default if sessions else ():
        resources = session.resources
        resources.machine_num = 1
        resources.others = {k: v for k, v in resources.others.items() if not k.startswith("env.")}


@pytest.fixture(autouse=True)
def _modules_of_examples(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]
) -> Iterator[None]:
    """Let the examples of docstrings use `flow`, `np` and `tp`, each in a new session."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    import numpy as np

    import oneflow as flow
    import oneflow.typing as tp
    from flow_core.frontend.session.session import default_session

    doctest_namespace.update(flow=flow, np=np, tp=tp)
    flow.clear_default_session()
    resources = copy.deepcopy(default_session().resources)
    yield
    flow.clear_default_session()
    default_session().resources = resources
