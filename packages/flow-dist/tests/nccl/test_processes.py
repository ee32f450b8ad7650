"""The comm for NCCL in processes joined by MPI, through the path that programs use."""

from pathlib import Path

import pytest
from launching import HELPERS, lines_of, run_script

pytestmark = pytest.mark.usefixtures("forked_programs")


@pytest.mark.slow
def test_kit_on_four_processes(tmp_path: Path) -> None:
    lines = lines_of(run_script(4, HELPERS / "run_nccl_ranks.py", str(tmp_path)))
    assert lines == 4 * ["127 checks"]
