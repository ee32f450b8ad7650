"""Bits depend neither on the launcher of a program nor on processes and kernel threads."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import processes
import pytest

pytest.importorskip("mpi4py", reason="processes are joined by mpi4py")

SCRIPT = Path(__file__).parents[2] / "helpers" / "programs" / "run_transformer.py"
LAUNCHER = Path(sys.executable).parent / "flow-dist"
KERNELS = {"numpy": "flow-onednn", "onednn": ""}
"""The plugins that must be left out for some kernels."""


@cache
def trained(kernels: str, count: int, **settings: str) -> str:
    """What some processes print at the default settings, and some others."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    kept.pop("ONEFLOW_CPU_THREADS", None)
    run = [str(LAUNCHER), "run", "-n", str(count)] if count > 1 else [sys.executable]
    env = {**kept, "FLOW_DISABLE_PLUGINS": KERNELS[kernels], **settings}
    return processes.run([*run, str(SCRIPT)], env=env, timeout=300, check=True).stdout


@pytest.mark.slow
@pytest.mark.representative("2-numpy", "the others differ in the number of processes")
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_with_the_bits_of_one(kernels: str, count: int) -> None:
    assert trained(kernels, count) == trained(kernels, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("count", [2, 4])
def test_they_do_on_a_machine_with_more_cores(kernels: str, count: int) -> None:
    """Each of the four devices has two threads there."""
    one = trained(kernels, 1, CORES="8", WIDTH="512")
    assert "threads 2" in one
    assert trained(kernels, count, CORES="8", WIDTH="512") == one


@pytest.mark.exhaustive
def test_onednns_kernels_train_with_the_same_bits_on_any_number_of_cores() -> None:
    few, many = (trained("onednn", 1, CORES=cores, WIDTH="512") for cores in ("4", "12"))
    assert ("threads 1" in few, "threads 3" in many) == (True, True)
    assert few.split("threads")[0] == many.split("threads")[0]
