"""Ranks that compute more slowly than others are named, and no others."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import processes
import pytest
from click.testing import CliRunner
from launching import run_script

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError, PlanError
from flow_core.cli.app import cli
from flow_core.comm.exchange import BOXING
from flow_core.observe.summary.rank_times import read_comparisons
from flow_core.plan import Plan, Task
from flow_core.runtime.observers import observed_executable
from flow_core.runtime.stragglers import (
    EVERY,
    SLOW,
    WINDOW,
    Comparison,
    compare,
    kernels_of,
    to_json,
)

PROGRAM = Path(__file__).parents[2] / "helpers" / "programs" / "run_stragglers.py"
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "stragglers.md"
SAMPLES = WINDOW // EVERY


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan whose ranks are four devices."""
    flow.clear_default_session()

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            for i in range(4):
                init = flow.random_normal_initializer()
                x = flow.layers.dense(x, 8, flow.math.tanh, kernel_initializer=init, name=f"l{i}")
            loss = flow.math.reduce_mean(x)
            flow.optimizer.SGD(0.01, momentum=0).minimize(loss)
        return loss

    train.config.share_replicas(False)
    return train.plan()


def owner(task: Task) -> int:
    return task.device.index


def drawn(plan: Plan, slow: dict[int, float], seed: int, noise: float = 0.1) -> Comparison:
    """Compare ranks whose times are drawn; the times of some ranks are multiplied by a factor."""
    rng = np.random.default_rng(seed)
    seconds = {
        i: float(np.median(task.seconds * rng.lognormal(0, noise, SAMPLES)))
        * slow.get(owner(task), 1.0)
        for i, task in enumerate(plan.tasks)
        if task.type != BOXING
    }
    return compare(plan, kernels_of(plan), owner, seconds, 0, WINDOW - 1)


def test_a_slow_rank_is_named_and_no_other(plan: Plan) -> None:
    for seed in range(40):
        found = drawn(plan, {seed % 4: 1.1}, seed)
        assert [rank.rank for rank in found.slow] == [seed % 4], seed
        assert found.slow[0].ratio == pytest.approx(1.1, abs=0.04)
        assert any(op.line.startswith(__file__) for op in found.slow[0].ops)
        assert not drawn(plan, {}, seed).slow


def test_several_ranks_may_be_slow(plan: Plan) -> None:
    found = drawn(plan, {0: 1.2, 3: 1.5}, 0)
    assert [rank.rank for rank in found.slow] == [3, 0]


def test_a_rank_is_compared_by_what_others_compute_too(plan: Plan) -> None:
    """An op that only one rank has may take any time; without common ops, nothing is said."""
    tasks = tuple(
        replace(task, type="matmul" if task.device.index else f"other_{i}")
        for i, task in enumerate(plan.tasks)
    )
    seconds = {i: 1.0 + 9 * (not task.device.index) for i, task in enumerate(tasks)
               if plan.tasks[i].type != BOXING}  # fmt: skip
    plan = replace(plan, tasks=tasks)
    found = compare(plan, kernels_of(plan), owner, seconds, 0, 1)
    assert found.ranks[0].ratio is None
    assert not found.slow


def test_a_comparison_is_read_as_it_was_written(plan: Plan, tmp_path: Path) -> None:
    found = drawn(plan, {1: 1.2}, 0)
    file = tmp_path / "ranks.json"
    file.write_text(to_json([found]))
    assert read_comparisons(str(file)) == [found]
    result = CliRunner().invoke(cli, ["stragglers", str(file)])
    assert result.exit_code == 1
    assert "4 ranks: rank 1 slow (1.05 times or more)" in result.stdout
    assert f"{Path(__file__).name}:" in result.stdout
    file.write_text(to_json([drawn(plan, {}, 0)]))
    result = CliRunner().invoke(cli, ["stragglers", "--json", str(file)])
    assert result.exit_code == 0
    assert [job["slow"] for job in json.loads(result.stdout)["jobs"]] == [[]]
    for text in ("{}", "[1]", "ranks"):
        file.write_text(text)
        with pytest.raises(PlanError, match="reading"):
            read_comparisons(str(file))


def test_steps_are_timed_only_now_and_then(tmp_path: Path) -> None:
    settings = Settings(stragglers=str(tmp_path / "ranks.json"))
    with pytest.raises(ConfigError, match="FLOW_STRAGGLERS"):
        observed_executable(replace(settings, trace="t.json"))
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, oneflow as flow, oneflow.typing as tp\n"
        "@flow.global_function()\n"
        "def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:\n"
        "    return flow.math.exp(x)\n"
        f"for i in range({2 * WINDOW}):\n"
        "    job(np.ones(4, np.float32))\n"
        f"    counts = {{len(times) for times in job.executable()._times.values()}}\n"
        f"    assert counts == {{(i + 1) % {WINDOW} // {EVERY}}}, (i, counts)\n"
    )
    env = {**os.environ, "FLOW_STRAGGLERS": settings.stragglers}
    done = processes.run([sys.executable, str(script)], env=env)
    assert done.returncode == 0, done.stderr
    (found,) = read_comparisons(settings.stragglers)
    assert (found.first, found.last) == (WINDOW, 2 * WINDOW - 1)  # written when the program ends
    assert [rank.ratio for rank in found.ranks] == [None]
    assert found.ranks[0].seconds > 0


@pytest.mark.slow
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("form", ["data", "stages"])
@pytest.mark.parametrize("slow", [-1, 2])
def test_a_slow_process_is_named_within_50_steps(slow: int, form: str, tmp_path: Path) -> None:
    file = tmp_path / "ranks.json"
    done = run_script(
        4,
        PROGRAM,
        str(slow),
        form,
        timeout=600,
        ONEFLOW_EMULATE_GPUS="4",
        FLOW_STRAGGLERS=str(file),
        FLOW_DISABLE_PLUGINS="flow-onednn",
    )
    assert done.returncode == 0, done.stderr
    named = [slow] if slow >= 0 else []
    assert done.stdout.splitlines()[-1] == f"{WINDOW - 1} {named}"
    (found,) = read_comparisons(str(file))
    assert [rank.rank for rank in found.slow] == named
    assert len(found.ranks) == 4
    assert ("rank 2 is a straggler" in done.stderr) == bool(named)
    assert all((rank.ratio or 1) < SLOW for rank in found.ranks if rank.rank not in named)
    if named and form == "data":
        printed = CliRunner().invoke(cli, ["stragglers", str(file)]).stdout
        quoted = PAGE.read_text().partition("$ flow stragglers ranks.json\n")[2].partition("```")[0]
        assert without_columns(printed) == without_columns(quoted)


def without_columns(text: str) -> list[list[str]]:
    """Return the words of a report, without the folder and the name of the program."""
    return [re.sub(r"\S*\.py:", ".py:", line).split() for line in text.rstrip().splitlines()]
