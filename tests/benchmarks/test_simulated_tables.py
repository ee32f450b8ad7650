"""The benchmarks that simulate steps, with reduced sizes, and their tables in the documentation."""

from __future__ import annotations

import sys
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]


def printed(script: str, *arguments: str) -> str:
    path = ROOT / "benchmarks" / script
    done = processes.run([sys.executable, str(path), *arguments], check=True)
    return str(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "devices"), [("resnet50", "1"), ("bert_base", "1,16")])
def test_published_throughput_is_simulated(network: str, devices: str) -> None:
    found = printed("dlperf.py", "--cases", network, "--devices", devices)
    rows = [line for line in found.splitlines() if line.startswith(f"| {network} |")]
    assert len(rows) == len(devices.split(","))
    page = (ROOT / "docs" / "howto" / "simulate.md").read_text()
    assert [row for row in rows if row not in page] == []
    assert found.endswith("not within 20%: none\n")


@pytest.mark.parametrize(
    ("case", "limit", "lines"),
    [
        pytest.param("wide_deep:4", "0.2", 6, marks=pytest.mark.slow),
        pytest.param("wide_deep:16", "0.2", 6, marks=pytest.mark.exhaustive),
        pytest.param("gpt:16", "4", 16, marks=pytest.mark.exhaustive),
    ],
)
def test_no_form_by_hand_is_faster_than_the_search_s(case: str, limit: str, lines: int) -> None:
    found = printed("search_forms.py", "--layers", "1", "--limit", limit, case)
    rows = [line.split(" | ") for line in found.splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [6] * lines
    assert all(row[1].endswith(" ms") for row in rows[1:]), found
    assert rows[1][0] == "| search"
    assert rows[1][3].endswith(" ms"), found
    assert min(float(row[5].removesuffix(" |")) for row in rows[2:]) >= 1
    assert found.endswith("a form by hand is faster than the search's: never\n")
