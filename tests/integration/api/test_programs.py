"""OneFlow's own programs, unmodified, on the real MNIST."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import processes
import pytest

SHARED = Path(__file__).parents[4] / "shared"
PROGRAMS, MNIST = SHARED / "programs", SHARED / "data" / "mnist.npz"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PROGRAMS.is_dir() and MNIST.exists()),
        reason="needs the programs and the MNIST file in ../shared",
    ),
]

# Cuts the epochs by wrapping: the program's own ``range`` counts no further than this.
WRAPPER = """
import builtins, runpy, sys
path, epochs = sys.argv[1], int(sys.argv[2])
short = lambda *args: builtins.range(*args[:-1], min(args[-1], epochs))
runpy.run_path(path, init_globals={"range": short}, run_name="__main__")
"""


def run(folder: Path, program: str, epochs: int, emulate: int) -> str:
    """What an unmodified program prints when it is run in a folder."""
    env = {"PATH": "/usr/bin:/bin", "ONEFLOW_EMULATE_GPUS": str(emulate), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRAPPER, str(PROGRAMS / program), str(epochs)]
    return processes.run(command, cwd=folder, env=env, timeout=900, check=True).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(MNIST, tmp_path / "mnist.npz")
    return tmp_path


@pytest.fixture
def third(tmp_path: Path) -> Path:
    """A folder with a third of MNIST: 20,000 and 3,300 images."""
    with np.load(MNIST) as full:
        parts = {name: full[name][: len(full[name]) // 300 * 100] for name in full.files}
    np.savez(tmp_path / "mnist.npz", **parts)
    return tmp_path


def accuracy(text: str) -> float:
    found = re.search(r"accuracy: ([\d.]+)%", text)
    assert found, text
    return float(found[1])


def losses(text: str) -> list[float]:
    return [float(row) for row in text.splitlines() if re.fullmatch(r"\d+\.\d+(e-?\d+)?", row)]


def test_mlp_trains_and_evaluates_asynchronously(folder: Path) -> None:
    printed = run(folder, "async_single_job.py", 3, 0)
    assert printed.startswith("File mnist.npz already exist, path: ./mnist.npz")
    values = losses(printed)
    assert len(values) == 90
    assert values[0] > 2.0
    assert values[-1] < 0.3
    assert accuracy(run(folder, "async_batch_job.py", 1, 0)) >= 95.0


def test_lenet_trains_and_evaluates(third: Path) -> None:
    printed = run(third, "lenet_train.py", 1, 1)
    values = losses(printed)
    assert len(values) == 10
    assert values[-1] < values[0] / 3
    assert printed.rstrip().endswith("model saved")
    assert accuracy(run(third, "lenet_eval.py", 1, 1)) >= 90.0
