"""A second start of a program loads the plans of the first, and computes the same bits."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import run, run_together

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "helpers" / "programs" / "run_kept_plans.py"
SKLEARN = find_spec("sklearn") is not None
EXAMPLES = sorted(path.stem for path in ROOT.glob("examples/*.py") if path.stem != "resume")
"""The examples that run their jobs in their own process."""


def environment(folder: Path, **settings: str) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(folder), "FLOW_PLAN_CACHE": "64MiB", **settings}


def started(script: Path, folder: Path, **settings: str) -> dict[str, Any]:
    """Run a script; return its output, the jobs that it compiled, and the bits of its results."""
    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(script)]
    done = run(command, env=environment(folder, **settings), cwd=folder, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


SCRIPT = """
import numpy as np

import oneflow as flow
import oneflow.typing as tp


def hidden(x):
    weights = flow.random_normal_initializer(stddev=0.1)
    return flow.layers.dense(x, 64, flow.nn.relu, kernel_initializer=weights, name="hidden")


@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((16, 32))) -> tp.Numpy:
    with flow.scope.placement("cpu", "0:0-1"):
        loss = flow.math.reduce_mean(flow.nn.dropout(hidden(x), 0.5))
        flow.optimizer.Adam(0.01, do_bias_correction=True).minimize(loss)
        return loss


@flow.global_function()
def predict(x: tp.Numpy.Placeholder((16, 32))) -> tp.Numpy:
    return hidden(x)


x = np.random.default_rng(0).standard_normal((16, 32), np.float32)
for _ in range(3):
    train(x)
    predict(x)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_second_start_loads_the_plans(script: Path, tmp_path: Path) -> None:
    without = started(script, tmp_path, FLOW_PLAN_CACHE="0")
    assert without["compiled"] == ["train", "predict"]
    first, second = started(script, tmp_path), started(script, tmp_path)
    assert first == without
    assert second == {"compiled": [], "results": without["results"]}
    script.write_text("\n" + SCRIPT)  # errors quote the lines of the script
    assert started(script, tmp_path) == without


@pytest.mark.slow
def test_processes_that_start_together_share_plans(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(PROGRAM), str(script)]
    both = run_together([(command, environment(tmp_path))] * 3, cwd=tmp_path)
    found = [json.loads(done.stdout.splitlines()[-1]) for done in both]
    assert len({tuple(one["results"]) for one in found}) == 1
    assert len(list((tmp_path / "flow-core" / "plans").iterdir())) == 2
    assert started(script, tmp_path) == {"compiled": [], "results": found[0]["results"]}


@pytest.mark.slow
@pytest.mark.representative(
    r"\[(detection|mixture_of_experts)-all|char_gpt-core",
    "values of changing shape, a grid of devices, and the kernels of the core alone",
)
@pytest.mark.parametrize("plugins", ["all", "core"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_compute_the_same_with_kept_plans(
    example: str, plugins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plugins == "all":
        monkeypatch.delenv("FLOW_DISABLE_PLUGINS", raising=False)
    path = ROOT / "examples" / f"{example}.py"
    if not SKLEARN and "sklearn" in path.read_text():
        pytest.skip("scikit-learn is not installed")
    first, second = started(path, tmp_path), started(path, tmp_path)
    assert first["compiled"]
    assert first["results"]
    assert second == {"compiled": [], "results": first["results"]}
