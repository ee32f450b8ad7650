"""What all tests need of the process that they run in, and the choice of a sample of cases."""

from __future__ import annotations

import hashlib
import random
import signal

import pytest

# Where tests are a job in the background, shells have them ignore Ctrl-C, and programs that tests
# start inherit that; a handler of our own is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SEED = "--sample"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option by which CI asks for a sample; without it all cases run."""
    parser.addoption(
        SEED,
        default="",
        metavar="SEED",
        help="of tests marked `sampled`, run the share of the cases that a number chooses, or "
        "'new' for a number that has not been used",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draws the number once: processes of pytest-xdist inherit the option."""
    if config.getoption(SEED) == "new":
        config.option.sample = str(random.SystemRandom().randrange(10**6))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not in the sample."""
    seed = config.getoption(SEED)
    dropped = [item for item in items if seed and not is_chosen(item, seed)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if is_chosen(item, seed)]


def is_chosen(item: pytest.Item, seed: str) -> bool:
    """Whether a case is in the sample of a seed, whatever other cases there are."""
    marker = item.get_closest_marker("sampled")
    if marker is None:
        return True
    digest = hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest()
    return int.from_bytes(digest[:4]) < marker.args[0] * 2**32


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says which sample it was, so that a failure can be had again."""
    if seed := config.getoption(SEED):
        terminalreporter.write_line(f"a sample of the cases; {SEED} {seed} chooses the same again")
