"""``flow plan --advise``: following a line of the advice gives the numbers that it predicts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from parallel_forms import emulated

import oneflow as flow
from flow_core.base import planning
from flow_core.cli.app import cli
from flow_core.cli.scripts import job_of
from flow_core.frontend.config import precision
from flow_core.observe.advise.changes import Change, Program
from flow_core.observe.advise.edits import Edit, edited
from flow_core.observe.advise.report import (
    Advice,
    Numbers,
    Option,
    advice_tables,
    advise,
    numbers_of,
)
from flow_core.observe.tables import joined

HEAD = """import oneflow as flow
import oneflow.typing as tp

INIT = flow.random_normal_initializer(stddev=0.02)
"""

HINTED = (
    HEAD
    + """

def layer(x, name):
    x = flow.layers.dense(x, 256, kernel_initializer=INIT, name=name)
    return flow.math.gelu(x)


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((512, 256))) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0-3"):
        for i in range(2):
            x = layer(
                x, f"layer{i}"
            )
        x = x.with_distribute(flow.distribute.broadcast())
        loss = flow.math.reduce_mean(flow.math.square(x))
        flow.optimizer.Adam(1e-3).minimize(loss)
    return loss
"""
)

PLAIN = HINTED.replace("        x = x.with_distribute(flow.distribute.broadcast())\n", "")

SMALLEST = (
    HEAD
    + """

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x + 1
"""
)


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what a script that is planned, and the command, change in this process."""
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def changes_of(file: str) -> list[Change]:
    """Return the changes that are tried for the only job of a file."""
    job = job_of(file)
    variant = job.traced_with(job.config)
    return list(Program(job, variant.traced.build, job.compile()).changes())


# ------------------------------------------------------------------------------------ following


@pytest.mark.slow
def test_each_line_of_advice_has_the_numbers_that_it_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "WIDENING", "no kernel")  # as if numpy had half products
    with emulated(4):
        found = advise(job_of(written(tmp_path, "as_is.py", HINTED)))
    followed = [*found.options, *found.others]
    assert {option.kind for option in followed} >= {
        "micro-batches", "precision", "sharded states", "fusion", "recomputation", "hint",
        "hierarchy",
    }  # fmt: skip
    for number, option in enumerate(followed):
        assert follow(option, tmp_path, number) == option.numbers, option


def follow(option: Option, folder: Path, number: int) -> Numbers:
    """Write the line of an option into the program, and return the program's numbers."""
    text, threads, edit = HINTED, None, option.edit
    if edit.action == "shell":
        threads = int(edit.code.removeprefix("export FLOW_STREAM_THREADS="))
    else:
        text = edit.applied(text)
    with emulated(4, threads):
        return numbers_of(job_of(written(folder, f"followed{number}.py", text)))


@pytest.mark.slow
def test_a_hint_that_costs_transfers_is_advised_against(tmp_path: Path) -> None:
    with emulated(4):
        found = advise(job_of(written(tmp_path, "hinted.py", HINTED)))
    line = 1 + HINTED.splitlines().index(
        "        x = x.with_distribute(flow.distribute.broadcast())"
    )
    dropped = [o for o in found.options if o.name == "the line without its hint"]
    assert [(o.edit.line, o.edit.code) for o in dropped] == [(line, "x = x")]
    assert dropped[0].numbers.traffic < found.now.traffic
    assert found.options == tuple(sorted(found.options, key=lambda o: rank(found, o)))
    assert f"at {tmp_path}/hinted.py:{line}" in joined(advice_tables(found))


def rank(found: Advice, option: Option) -> tuple[bool, float]:
    faster = option.numbers.seconds < 0.995 * found.now.seconds
    return not faster, option.numbers.seconds if faster else option.numbers.nbytes


# --------------------------------------------------------------------------------- the changes


def test_no_hint_is_named_that_nobody_wrote(tmp_path: Path) -> None:
    """Weights of dense layers are broadcast by default, which the compiler sees as a hint."""
    with emulated(4):
        changes = changes_of(written(tmp_path, "plain.py", PLAIN))
    assert "the line without its hint" not in {change.name for change in changes}
    assert any(change.kind == "hint" for change in changes)


def test_changes_that_the_program_has_already_are_not_tried(tmp_path: Path) -> None:
    lines = [
        "config = flow.function_config()",
        "config.enable_auto_mixed_precision(True)",
        "config.optimizer_placement_optimization_mode('distributed_split')",
    ]
    text = PLAIN.replace('(type="train")', '(type="train", function_config=config)')
    text = text.replace("\n\n\ndef layer", "\n".join(["", *lines, "\n\ndef layer"]))
    with emulated(4):
        changes = changes_of(written(tmp_path, "made.py", text))
    kinds = {change.kind for change in changes}
    assert "precision" not in kinds
    sharded = [change.name for change in changes if change.kind == "sharded states"]
    assert sharded == ["weights gathered layer by layer"]
    assert "micro-batches" in kinds


def test_one_device_has_neither_hints_nor_grids(tmp_path: Path) -> None:
    text = PLAIN.replace("0:0-3", "0:0")
    with emulated(1):
        kinds = {change.kind for change in changes_of(written(tmp_path, "one.py", text))}
    assert not kinds & {"hint", "hierarchy", "fusion", "sharded states"}
    assert kinds >= {"micro-batches", "recomputation"}


def test_half_types_are_tried_only_where_kernels_multiply_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "half.py", PLAIN.replace("0:0-3", "0:0"))
    with emulated(1):
        assert "precision" not in {change.kind for change in changes_of(file)}
        flow.clear_default_session()
        monkeypatch.setattr(precision, "WIDENING", "no kernel")
        assert "precision" in {change.kind for change in changes_of(file)}


def test_a_grid_is_written_into_the_placement_of_the_program(tmp_path: Path) -> None:
    with emulated(4):
        changes = changes_of(written(tmp_path, "grid.py", PLAIN))
    grids = [change.edit for change in changes if change.kind == "hierarchy"]
    assert [edit.code for edit in grids] == ['with flow.scope.placement("gpu", "0:0-3", (2, 2)):']
    assert PLAIN.splitlines()[grids[0].line - 1].strip().startswith("with flow.scope.placement")


def test_functions_have_their_own_code_again_after_a_change(tmp_path: Path) -> None:
    text = SMALLEST.replace("return x + 1", "return helper(x)")
    text = text.replace("\n\n\n@", "\n\n\ndef helper(x):\n    return x + 1\n\n\n@")
    file = written(tmp_path, "restored.py", text)
    job = job_of(file)
    line = 1 + text.splitlines().index("    return x + 1")
    with edited(Edit("replace", "return x + 2 + x", file, line, line)):
        changed = job.traced_with(job.config).traced.build.builder.ops
    assert len(changed) == 1 + len(job.prepare().build.builder.ops)


def test_statements_of_several_lines_are_indented_as_a_whole() -> None:
    edit = Edit("around", "with scope:", "net.py", 2, 4)
    assert edit.applied("def f(x):\n    return g(\n        x\n    )\n") == (
        "def f(x):\n    with scope:\n        return g(\n            x\n        )"
    )
    assert edit.where == "around net.py:2-4"


# ------------------------------------------------------------------------------------- command


def test_the_command_prints_json_and_fails_if_nothing_helps(tmp_path: Path) -> None:
    file = written(tmp_path, "smallest.py", SMALLEST)
    result = CliRunner().invoke(cli, ["plan", "--advise", "--json", file])
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert data["options"] == []
    assert data["now"]["nbytes"] > 0
    flow.clear_default_session()
    printed = CliRunner().invoke(cli, ["plan", "--advise", file])
    assert "none of " in printed.stdout


def test_options_of_the_simulation_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "smallest.py", SMALLEST)
    result = CliRunner().invoke(cli, ["plan", "--advise", "--devices", "2x2", file])
    assert result.exit_code == 2
    assert "belong to --simulate" in result.output


@pytest.mark.slow
def test_the_command_exits_with_status_0_if_a_change_helps(tmp_path: Path) -> None:
    with emulated(4):
        file = written(tmp_path, "helped.py", HINTED)
        result = CliRunner().invoke(cli, ["plan", "--advise", file])
    assert result.exit_code == 0, result.output
    assert "what helps: " in result.stdout
    assert "x = x" in result.stdout
