"""``flow plan --check``: changes of a program that make its plan more expensive are reported."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from parallel_forms import emulated

from flow_core.base import planning
from flow_core.base.errors import PlanError
from flow_core.builtin.numpy_kernels.math import matmul
from flow_core.cli.app import cli
from flow_core.cli.progress import silent
from flow_core.cli.scripts import documents_of
from flow_core.observe.budget import (
    Budget,
    budget_of,
    compare,
    markdown,
    read_budgets,
    write_budgets,
)
from flow_core.observe.document import PlanDocument

PROGRAM = """
import oneflow as flow
import oneflow.typing as tp

glorot = flow.glorot_uniform_initializer()
Images, Labels = tp.Numpy.Placeholder((32, 64)), tp.Numpy.Placeholder((32,), flow.int32)


@flow.global_function(type="train")
def train(x: Images, labels: Labels) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0-3"):
        h = flow.layers.dense(x, 128, kernel_initializer=glorot, name="a")
        h = flow.math.tanh(h)
        shape, columns = (h.shape[1], 256), flow.distribute.split(1)
        w = flow.get_variable("w", shape, initializer=glorot, distribute=columns)
        h = flow.parallel_cast(h, distribute=flow.distribute.broadcast())
        h = flow.matmul(h, w)
        scores = flow.layers.dense(h, 10, kernel_initializer=glorot, name="b")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
    return loss
"""

DENSE = 'flow.layers.dense(h, 128, kernel_initializer=glorot, name="c")'
TANH = "flow.math.tanh(h)"
GLOBAL_NORM = "momentum=0, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1)"
ROWS = "w.with_distribute(flow.distribute.split(0))"
BROADCAST = "flow.parallel_cast(scores, distribute=flow.distribute.broadcast())"
SPLIT = f"flow.parallel_cast({TANH}, distribute=flow.distribute.split(1))"
SUM, MEAN = "flow.matmul(h, w) + flow.matmul(h * 2, w)", "flow.math.reduce_mean(scores)"
DOUBLE = "flow.cast(flow.math.tanh(flow.cast(h, flow.float64)), flow.float32)"
REGRESSIONS = {
    "a wider layer": ("x, 128,", "x, 192,", "variable_bytes"),
    "another layer": (TANH, f"flow.math.tanh({DENSE})", "variable_bytes"),
    "a longer chain": (TANH, "flow.math.tanh(flow.math.sigmoid(h))", "elementwise and other"),
    "more classes": ("h, 10,", "h, 100,", "variable_bytes"),
    "Adam": ("SGD(0.1, momentum=0)", "Adam(0.1)", "variable_bytes"),
    "momentum": ("momentum=0", "momentum=0.9", "variable_bytes"),
    "a broadcast weight": (", distribute=columns", "", "variable_bytes"),
    "a weight split by rows": ("matmul(h, w)", f"matmul(h, {ROWS})", "collectives"),
    "a split activation": (TANH, SPLIT, "moved_bytes"),
    "gathered scores": ("(labels, scores)", f"(labels, {BROADCAST})", "moved_bytes"),
    "another type": (TANH, DOUBLE, "moved_bytes"),
    "a transposition": (TANH, "flow.transpose(flow.math.tanh(flow.transpose(h)))", "tasks"),
    "an op twice": (TANH, f"{TANH} + flow.math.tanh(h * 2)", "elementwise and other"),
    "dropout": (TANH, f"flow.nn.dropout({TANH}, 0.5)", "elementwise and other"),
    "softmax": (TANH, "flow.nn.softmax(h)", "softmax and losses"),
    "batch norm": (TANH, "flow.layers.batch_normalization(h, 1)", "collectives"),
    "clipping": ("momentum=0", GLOBAL_NORM, "reductions"),
    "a second product": ("flow.matmul(h, w)", SUM, "matrix products"),
    "an index": (TANH, "flow.gather(h, flow.argsort(flow.math.reduce_sum(h, 1)))", "lookups"),
    "a mean of all scores": ("minimize(loss)", f"minimize(loss - {MEAN})", "reductions"),
}


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what a script that is planned, and the command, change in this process."""
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def planned(text: str, path: Path) -> PlanDocument:
    """Return the plan of the only job of a program, which is written to a file."""
    path.write_text(text)
    with emulated(4):
        (doc,) = documents_of(str(path), (), silent)
    return doc


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> Budget:
    path = tmp_path_factory.mktemp("budget") / "plan.budget.toml"
    write_budgets(path, {"train": budget_of(planned(PROGRAM, path.with_name("train.py")))})
    return read_budgets(path)["train"]


def test_the_same_program_meets_its_budget(budget: Budget, tmp_path: Path) -> None:
    assert list(compare(planned(PROGRAM, tmp_path / "train.py"), budget)) == []


@pytest.mark.parametrize("is_batchable", [False, True])
def test_the_processor_does_not_matter(
    is_batchable: bool, budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether simulated devices can share a launch depends on the kernels of the BLAS library.
    monkeypatch.setattr(matmul, "bitwise_equal_in_trials", lambda *_: is_batchable)
    assert list(compare(planned(PROGRAM, tmp_path / "train.py"), budget)) == []


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_regression_is_reported_with_its_line(name: str, budget: Budget, tmp_path: Path) -> None:
    old, new, number = REGRESSIONS[name]
    assert PROGRAM.count(old) == 1
    doc = planned(PROGRAM.replace(old, new), tmp_path / "train.py")
    found = {(c.section, c.name): c for c in compare(doc, budget) if c.is_excess}
    line = PROGRAM[: PROGRAM.index(old)].count("\n") + 1
    causes = "\n".join(cause for change in found.values() for cause in change.causes)
    assert number in {part for key in found for part in key}
    assert f"train.py:{line}" in causes


def test_a_cheaper_program_meets_the_budget(budget: Budget, tmp_path: Path) -> None:
    doc = planned(
        PROGRAM.replace("x, 128", "x, 64").replace("(128,", "(64,"), tmp_path / "train.py"
    )
    changes = list(compare(doc, budget))
    assert {"arena_bytes", "variable_bytes", "moved_bytes"} <= {c.name for c in changes}
    assert not any(c.is_excess for c in changes)


def test_numbers_that_the_file_lacks_are_not_compared(budget: Budget, tmp_path: Path) -> None:
    doc = planned(
        PROGRAM.replace("x, 128,", "x, 136,").replace("(128,", "(136,"), tmp_path / "train.py"
    )
    only = replace(budget, numbers={"step": {"tasks": budget.numbers["step"]["tasks"]}})
    assert list(compare(doc, only)) == []


def test_a_plan_for_other_devices_is_not_compared(budget: Budget, tmp_path: Path) -> None:
    text = PROGRAM.replace("0:0-3", "0:0-1")
    with pytest.raises(PlanError, match=r"gpu:0:0 gpu:0:1\n  allowed: gpu:0:0 gpu:0:1 gpu:0:2"):
        list(compare(planned(text, tmp_path / "train.py"), budget))


# -------------------------------------------------------------------------------------- command


def flow_plan(*arguments: object) -> Result:
    with emulated(4):
        return CliRunner().invoke(cli, ["plan", *map(str, arguments)])


def test_the_command(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "plan.budget.toml"
    script.write_text(PROGRAM)
    assert flow_plan("--check", file, "--update", script).exit_code == 0
    assert tomllib.loads(file.read_text())["train"]["step"]["tasks"] > 10
    found = flow_plan("--check", file, script)
    assert (found.exit_code, found.output) == (0, "all plans meet their budgets\n")

    script.write_text(PROGRAM.replace("momentum=0", "momentum=0.9"))
    found = flow_plan("--check", file, script)
    assert found.exit_code == 1
    assert "larger than the budget" in found.output
    (change,) = (
        c for c in json.loads(flow_plan("--check", file, "--json", script).output)
        if c["name"] == "variable_bytes"
    )  # fmt: skip
    assert change["excess"]
    assert "a-weight-momentum" in "".join(change["causes"])
    found = flow_plan("--check", file, "--markdown", script)
    assert "| train | variable bytes | " in found.output
    assert flow_plan("--check", file, "--update", f"{script}:train").exit_code == 0
    assert flow_plan("--check", file, script).exit_code == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[train", "Expected"),
        ("train = 3", "no text at train.devices"),
        ('[train]\ndevices = "cpu:0:0"\nstep = 3', "train['step']"),
        ('[train]\ndevices = "cpu:0:0"\n[train.step]\ntasks = "4"', "['tasks']"),
        ('[other]\ndevices = "cpu:0:0"', "no budget of the job"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_is_refused(text: str | None, found: str, tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "plan.budget.toml"
    script.write_text(PROGRAM)
    if text is not None:
        file.write_text(text)
    done = flow_plan("--check", file, script)
    assert done.exit_code == 1
    assert found in done.output
    assert "next: " in done.output


def test_markdown_of_plans_that_meet_their_budgets() -> None:
    assert markdown(()) == "All plans meet their budgets."
