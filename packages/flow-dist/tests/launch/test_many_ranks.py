"""Many ranks on this machine: 64 take 86 s and 4 GB on two loaded cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import processes
import psutil
import pytest
from launching import HELPERS, launcher, lines_of

from flow_dist.launch.bytecode import compile_if_missing

RANKS = 64
NEEDED_BYTES = 8 << 30


@pytest.mark.exhaustive
def test_64_ranks_train_with_the_bits_of_one_process() -> None:
    launcher()
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip(f"less than {NEEDED_BYTES >> 30} GiB of memory is available")
    program = [str(HELPERS / "many_ranks.py"), str(RANKS)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    one = processes.run([sys.executable, *program], env=env)
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run"]
    patience = ["--silence", "300", "--start", "600"]  # all ranks start at once on few cores
    many = processes.run([*command, "-n", str(RANKS), *patience, *program], env=env, timeout=600)
    assert len(lines_of(one)) == 5
    assert many.stdout == one.stdout, many.stderr


@pytest.mark.slow
def test_byte_code_is_compiled_once_before_more_ranks_than_cores_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    cores = os.cpu_count() or 1
    assert not compile_if_missing(cores)
    assert not list(tmp_path.iterdir())
    assert compile_if_missing(cores + 1)
    compiled = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert {"world", "agreement", "comm"} <= compiled
    assert not compile_if_missing(cores + 1)
