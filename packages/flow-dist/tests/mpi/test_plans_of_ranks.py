"""Processes use plans that are kept on disk if all of them have found equal ones."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import processes
import pytest
from launching import HELPERS, launcher, run_script

PROGRAM = HELPERS / "kept_plans_program.py"


def started(folder: Path, without: str = "", **env: str) -> tuple[list[str], str]:
    """Start two ranks; return their results."""
    done = run_script(2, PROGRAM, str(folder), without, **env)
    assert done.returncode == 0, done.stderr
    return results(folder)


def results(folder: Path) -> tuple[list[str], str]:
    """Return what both ranks compiled, and the digest of their results."""
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    return first[0], first[1]


def test_ranks_use_kept_plans_together(tmp_path: Path) -> None:
    compiled, bits = started(tmp_path)
    assert compiled == ["train"]
    assert started(tmp_path) == ([], bits)
    assert started(tmp_path, "1") == (["train"], bits)


@pytest.mark.slow
def test_ranks_without_plans_compile_with_the_others(tmp_path: Path) -> None:
    compiled, bits = started(tmp_path, "0,1")
    assert compiled == ["train"]
    assert not list(tmp_path.glob("*/flow-core"))
    assert started(tmp_path) == (["train"], bits)
    shutil.rmtree(tmp_path / "0")  # as after a restart on another host
    assert started(tmp_path) == (["train"], bits)
    assert started(tmp_path) == ([], bits)


@pytest.mark.slow
def test_restarted_ranks_compile_nothing(tmp_path: Path) -> None:
    """They load the plans that they had before a rank was killed."""
    launcher()
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run", "-n", "2"]
    done = processes.run([*command, "--max-restarts", "1", PROGRAM, str(tmp_path), "", "kill"])
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1 with 2 ranks" in done.stderr
    compiled, bits = results(tmp_path)
    assert compiled == []
    assert started(tmp_path, "0,1") == (["train"], bits)


@pytest.mark.slow
def test_ranks_use_the_form_that_they_have_searched(tmp_path: Path) -> None:
    limits = {"ONEFLOW_EMULATE_GPUS": "4", "ONEFLOW_EMULATE_GPU_MEMORY": "80000"}
    compiled, bits = started(tmp_path, **limits)
    assert compiled.count("train") > 1  # the forms
    assert started(tmp_path, **limits) == ([], bits)
    assert started(tmp_path, "1", **limits) == (compiled, bits)
