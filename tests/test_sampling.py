"""The sample of cases that CI takes: whole tests, shares of cases, and the seed that is printed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import processes
import pytest

CASES = """
import pytest

@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("n", range(200))
def test_many(n): pass

@pytest.mark.parametrize("n", range(200))
def test_cases(n): pass

@pytest.mark.sampled(0.0)
@pytest.mark.parametrize("n", range(5))
def test_few(n): pass

def test_alone(): pass
"""
CONFTEST = Path(__file__).parent.parent / "conftest.py"


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = sampled(share): some\n")
    return tmp_path


def run(folder: Path, *options: str) -> tuple[dict[str, set[str]], str]:
    """The cases that ran, by test, and the seed that was printed."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "xdist", *options]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = processes.run(command, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout
    found: dict[str, set[str]] = {}
    for test, case in re.findall(r"::(\w+)(\[\d+\])? ", done.stdout):
        found.setdefault(test, set()).add(case)
    seeds = re.findall(r"--sample (\d+) chooses", done.stdout)
    return found, "".join(seeds)


def test_all_cases_run_without_a_seed(cases: Path) -> None:
    found, seed = run(cases)
    assert {test: len(ran) for test, ran in found.items()} == {
        "test_many": 200, "test_cases": 200, "test_few": 5, "test_alone": 1,
    }  # fmt: skip
    assert seed == ""


def test_a_seed_chooses_shares_and_one_case_at_least(cases: Path) -> None:
    found, seed = run(cases, "--sample", "7")
    assert seed == "7"
    assert 30 < len(found["test_many"]) < 90
    assert len(found["test_cases"]) == 200
    assert len(found["test_few"]) == len(found["test_alone"]) == 1
    fewer, _ = run(cases, "--sample", "7", "--share", "0.5")
    assert fewer["test_many"] < found["test_many"]
    assert 60 < len(fewer["test_cases"]) < 140
    assert len(fewer["test_few"]) == len(fewer["test_alone"]) == 1


def test_the_printed_seed_gives_the_same_sample_in_several_processes(cases: Path) -> None:
    new, seed = run(cases, "--sample", "new", "-n", "2")
    again, _ = run(cases, "--sample", seed)
    other, _ = run(cases, "--sample", f"1{seed}")
    assert new == again != other


def test_subsets_partition_the_tests(cases: Path) -> None:
    first, second = (run(cases, "--sample", "5", "--subset", f"{k}/2")[0] for k in (0, 1))
    assert first
    assert second
    assert first | second == run(cases, "--sample", "5")[0]
    assert not first.keys() & second.keys()


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1", "a/b"])
def test_subsets_that_do_not_exist_are_refused(pytestconfig: pytest.Config, text: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"invalid subset_of value: '{text}'"):
        pytestconfig._parser.parse(["--sample", "5", f"--subset={text}"])
