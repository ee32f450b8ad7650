"""Equal requests have equal digests and plans: in other processes, and after other jobs."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run_together

ROOT = Path(__file__).parents[3]
SKLEARN = find_spec("sklearn") is not None
"""Whether examples can load the data of scikit-learn; no example draws before its first step."""
EXAMPLES = sorted(
    str(path)
    for path in ROOT.glob("examples/*.py")
    if path.name != "resume.py"  # which runs its job in processes that it starts
    and (SKLEARN or "sklearn" not in path.read_text())
)
PROGRAM = ROOT / "tests" / "helpers" / "programs" / "run_digests.py"


@pytest.mark.slow
def test_examples_have_the_same_digests_in_two_processes(tmp_path: Path) -> None:
    """The processes differ in the order of the scripts and in the hashes of texts."""
    orders = (EXAMPLES, EXAMPLES[::-1])
    commands = []
    for number, scripts in enumerate(orders):
        command = [sys.executable, "-W", "ignore", PROGRAM, tmp_path / f"{number}.json", *scripts]
        commands.append((command, {**os.environ, "PYTHONHASHSEED": str(number + 1)}))
    for done in run_together(commands, cwd=tmp_path):
        assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in (0, 1))
    assert first == second
    assert first.keys() == set(EXAMPLES)
    assert all(jobs for jobs in first.values())
    requests = [request for jobs in first.values() for _, request, _ in jobs]
    assert len(set(requests)) == len(requests)
