"""A process killed during a save leaves either the old or the new checkpoint intact."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import processes
import pytest

import flow_core
from flow_core.checkpoint import load, save

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills and forks as POSIX systems do")

HELPER = Path(__file__).with_name("kill_helper.py")
SECONDS = 4.0


def start(*arguments: object) -> processes.Program:
    source = str(Path(flow_core.__file__).parents[1])
    command = [sys.executable, "-W", "ignore", str(HELPER), *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": source, "OPENBLAS_NUM_THREADS": "1"}
    return processes.Program(command, env=env, stderr=None)


def check_whole(path: Path) -> int:
    """Return the version of a checkpoint after checking that all variables agree."""
    found = load(path)
    versions = {int(x) for value in found.values() for x in np.unique(value)}
    assert len(versions) == 1, f"a mix of {versions}"
    version = versions.pop()
    assert len(found) == 4 + version % 3
    return version


@pytest.mark.slow
def test_save_killed_at_random_moments(tmp_path: Path) -> None:
    """Kill a process that saves version after version, repeatedly."""
    rng, end, rounds = random.Random(5), time.monotonic() + SECONDS, 0
    while rounds < 3 or time.monotonic() < end:
        with start("loop", tmp_path / "model") as child:
            assert child.stdout is not None
            child.stdout.readline()  # the first save is complete
            time.sleep(rng.uniform(0.0, 0.05))
        check_whole(tmp_path / "model")
        rounds += 1
    save(tmp_path / "model", {"w": np.ones(1, np.float32)}, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("how", ["exchange", pytest.param("two-steps", marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", ["ends", pytest.param("all", marks=pytest.mark.exhaustive)])
def test_save_killed_at_every_line(tmp_path: Path, how: str, which: str) -> None:
    """The process exits at each line of the save in turn and loses all unwritten buffers.

    The sample consists of the first and the last execution of each line.
    """
    with start("lines", tmp_path, how, which) as child:
        report, _ = child.communicate(timeout=1200)
    assert child.returncode == 0
    lines = [line.split() for line in report.splitlines()]
    assert len(lines) > 50
    versions = [check_whole(tmp_path / folder) for folder, _ in lines]
    assert versions == sorted(versions), "a replaced checkpoint never reappears"
    assert set(versions) == {1, 2}
    assert lines[-1][1] == "finished"
