"""Processes use plans that are kept on disk if all of them have found equal ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from launching import HELPERS, run_script

PROGRAM = HELPERS / "kept_plans_program.py"


def started(folder: Path, without: str = "") -> tuple[list[str], str]:
    """Start two ranks; return what both compiled, and the digest of their results."""
    done = run_script(2, PROGRAM, str(folder), without)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    return first[0], first[1]


def test_ranks_use_kept_plans_together(tmp_path: Path) -> None:
    both, neither = ["train"], list[str]()
    compiled, bits = started(tmp_path, "0,1")
    assert compiled == both
    assert not list(tmp_path.glob("*/flow-core"))
    assert started(tmp_path) == (both, bits)
    assert started(tmp_path) == (neither, bits)
    assert started(tmp_path, "1") == (both, bits)
    shutil.rmtree(tmp_path / "0")  # as after a restart on another host
    assert started(tmp_path) == (both, bits)
    assert started(tmp_path) == (neither, bits)
