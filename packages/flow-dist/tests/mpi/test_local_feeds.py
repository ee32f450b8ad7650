"""Processes that feed their own rows: the losses of whole arrays, to the last bit."""

import re
from functools import cache

import pytest
from launching import HELPERS, run_script

pytestmark = pytest.mark.usefixtures("forked_programs")

PROGRAM = HELPERS / "local_feeds.py"


@cache
def whole(ranks: int) -> list[str]:
    done = run_script(ranks, PROGRAM, "whole")
    assert done.returncode == 0, done.stderr
    losses = re.findall("loss (.*)", done.stderr)
    assert len(losses) == 12 * ranks
    return sorted(losses)


@pytest.mark.slow
@pytest.mark.representative("2-rows", "the others differ in the number of processes")
@pytest.mark.parametrize("how", ["rows", "function", "async"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_process_feeds_its_own_rows(ranks: int, how: str) -> None:
    done = run_script(ranks, PROGRAM, how)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall("loss (.*)", done.stderr)) == whole(ranks)


@pytest.mark.slow
def test_rows_that_a_process_lacks() -> None:
    done = run_script(2, PROGRAM, "missing")
    assert done.returncode != 0
    assert "FeedError: feeding 'x' of job 'train'" in done.stderr
    assert "rows 12 to 15 fed by this process, of which a device needs 4 to 7" in done.stderr
