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
