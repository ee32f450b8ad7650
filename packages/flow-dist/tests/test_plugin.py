"""The lines of ``flow doctor``, and that importing the plugin imports no library."""

import importlib.util
import re
import sys
from pathlib import Path

import processes
import pytest

from flow_dist import doctor, plugin
from flow_dist.bootstrap.membership import INSTALL_MPI
from flow_dist.control.secret import job_token, secret_file


def test_doctor_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert doctor.mpi() == f"unavailable: mpi4py is not installed; next: {INSTALL_MPI}"


def test_doctor_has_a_line_each() -> None:
    names = [line.partition(":")[0] for line in plugin.flow_doctor()]
    assert names == [
        "MPI",
        "Shared memory",
        "NCCL",
        "Ray",
        "Secret for jobs without a token",
    ]


def test_doctor_finds_an_mpi_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor, "_ASK", "raise RuntimeError('cannot load MPI library')")
    assert re.match("unavailable: .*cannot load MPI library; next: uv pip install", doctor.mpi())


def test_doctor_reports_the_state_of_the_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "will be created" in list(doctor.lines())[-1]
    job_token({"XDG_CONFIG_HOME": str(tmp_path)})
    assert list(doctor.lines())[-1].endswith("secret")
    secret_file({"XDG_CONFIG_HOME": str(tmp_path)}).chmod(0o644)
    assert "next: chmod 600" in list(doctor.lines())[-1]


def test_import_loads_no_library() -> None:
    code = "import sys, flow_dist.plugin; assert not {'mpi4py', 'nccl', 'cupy'} & set(sys.modules)"
    processes.run([sys.executable, "-c", code], check=True)
