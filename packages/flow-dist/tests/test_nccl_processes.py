"""The comm for NCCL in real processes, which MPI joins: by the way that a program takes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from launching import HERE, lines_of, run_script


@pytest.mark.slow
def test_kit_on_four_processes(tmp_path: Path) -> None:
    lines = lines_of(run_script(4, HERE / "run_nccl_ranks.py", str(tmp_path)))
    assert lines == 4 * ["127 checks"]
