"""What all tests need of the process that they run in, and the choice of a sample of cases."""

from __future__ import annotations

import hashlib
import random
import signal
from typing import Any

import pytest

# Where tests are a job in the background, shells have them ignore Ctrl-C, and programs that tests
# start inherit that; a handler of our own is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SEED, SHARE = "--sample", "--share"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options by which CI asks for a sample; without them all cases run."""
    parser.addoption(
        SEED,
        default="",
        metavar="SEED",
        help="of tests marked `sampled`, run the share of the cases that a number chooses, or "
        "'new' for a number that has not been used",
    )
    parser.addoption(
        SHARE,
        default=1.0,
        type=float,
        metavar="SHARE",
        help="with a sample, the share of the cases of all other tests with parameters",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draws the number once for all processes of pytest-xdist."""
    given = getattr(config, "workerinput", {})
    if config.getoption(SEED) == "new":
        config.option.sample = given.get(SEED) or str(random.SystemRandom().randrange(10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a process of pytest-xdist the number."""
    node.workerinput[SEED] = node.config.getoption(SEED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the cases that are not in the sample; of each test there is one, at least."""
    seed, share = config.getoption(SEED), config.getoption(SHARE)
    if not seed:
        return
    places = {item: place_of(item, seed) for item in items}
    first: dict[str, float] = {}
    for item, place in places.items():
        first[test_of(item)] = min(place, first.get(test_of(item), 1.0))
    chosen = [
        item
        for item, place in places.items()
        if place < share_of(item, share) or place == first[test_of(item)]
    ]
    config.hook.pytest_deselected(items=list(places.keys() - set(chosen)))
    items[:] = chosen


def test_of(item: pytest.Item) -> str:
    """The test that an item is a case of."""
    return item.nodeid.partition("[")[0]


def place_of(item: pytest.Item, seed: str) -> float:
    """Where a seed puts a case between 0 and 1, whatever other cases there are."""
    digest = hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32


def share_of(item: pytest.Item, share: float) -> float:
    """The share of a test's cases that are in the sample."""
    marker = item.get_closest_marker("sampled")
    return share * (marker.args[0] if marker else 1.0) if "[" in item.nodeid else 1.0


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says which sample it was, so that a failure can be had again."""
    if seed := config.getoption(SEED):
        terminalreporter.write_line(f"a sample of the cases; {SEED} {seed} chooses them again")
