"""Many ranks on this machine: 64 take 86 s and 4 GB on two loaded cores, 32 over MPI 70 s."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import processes
import psutil
import pytest
from launching import HELPERS, launcher

from flow_dist.launch import bytecode
from flow_dist.launch.bytecode import compile_if_missing
from flow_dist.mpi.comm import MANY_RANKS
from flow_dist.shm.memory import ENABLED

BYTES_PER_RANK = 1 << 27

TRANSPORTS = {
    "shared memory": (64, {}),
    "MPI's collectives": (MANY_RANKS, {ENABLED: "0"}),
}
"""The number of ranks that the transport of an all-reduce is tested with, and its settings."""

COLLECTIVES = {"shared memory": "none", "MPI's collectives": "in chunks, whole"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_ranks_train_with_the_bits_of_one_process(transport: str) -> None:
    launcher()
    ranks, settings = TRANSPORTS[transport]
    if psutil.virtual_memory().available < ranks * BYTES_PER_RANK:
        pytest.skip(f"less than {ranks * BYTES_PER_RANK >> 30} GiB of memory is available")
    program = [str(HELPERS / "many_ranks.py"), str(ranks)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **settings}
    one = processes.run([sys.executable, *program], env=env)
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run"]
    patience = ["--silence", "300", "--start", "600"]  # all ranks start at once on few cores
    many = processes.run([*command, "-n", str(ranks), *patience, *program], env=env, timeout=600)
    for done in (one, many):
        assert done.returncode == 0, done.stderr
    (*alone, _), (*together, collectives) = one.stdout.splitlines(), many.stdout.splitlines()
    assert len(alone) == 5
    assert together == alone
    assert collectives == f"collectives: {COLLECTIVES[transport]}"


@pytest.mark.slow
def test_byte_code_is_compiled_once_before_more_ranks_than_cores_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    cores = os.cpu_count() or 1
    assert not compile_if_missing(cores, 600)
    assert not list(tmp_path.iterdir())
    assert compile_if_missing(cores + 1, 600)
    compiled = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert {"world", "agreement", "comm"} <= compiled
    assert not compile_if_missing(cores + 1, 600)


def test_an_import_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "waits.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(bytecode, "_MODULES", ("oneflow", "waits"))
    assert compile_if_missing((os.cpu_count() or 1) + 1, 0.1)
    assert not psutil.Process().children()
    assert "took more than 0.1 s" in capsys.readouterr().err
