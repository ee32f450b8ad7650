"""Rules of a file are checked by brute force, with an evaluator that is no part of flow."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from flow_rules import Place, RulesError, check
from flow_rules.cli import main
from flow_rules.evaluators import load_evaluator
from flow_rules.files import parse_rules


class Ops:
    """An evaluator of three ops."""

    @staticmethod
    def evaluate(op: str, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        if op == "product":
            a, b = inputs
            return [(a.T if attributes["transpose_a"] else a) @ b]
        if op == "fill":  # the attribute is the size of the output
            return [np.full(attributes["shape"], inputs[0])]
        if op == "update":
            return [inputs[0] - inputs[1]]
        return None

    @staticmethod
    def localize(op: str, attributes: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
        if op != "fill":
            return attributes
        return {"shape": tuple(high - low for low, high in place.output_regions[0])}


def tensor(*shape: int, low: float = -2, high: float = 2) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "float64", "range": [low, high]}


def op(type_: str, inputs: Any, outputs: Any, *rules: str, **more: Any) -> dict[str, Any]:
    rows = [rule.split(" -> ") for rule in rules]
    case = {
        "attributes": more.get("attributes", {}),
        "inputs": inputs,
        "outputs": outputs,
        "overwrites": more.get("overwrites", []),
        "rules": [
            {"inputs": a.split(", ") if a else [], "outputs": b.split(", ") if b else []}
            for a, b in rows
        ],
    }
    return {"type": type_, "cases": [case]}


def product(transpose: bool, *rules: str) -> dict[str, Any]:
    left = tensor(6, 5) if transpose else tensor(5, 6)
    attributes = {"transpose_a": transpose}
    outputs = [tensor(5, 4)]
    return op("product", [left, tensor(6, 4)], outputs, *rules, attributes=attributes)


RIGHT = ("S(0), B -> S(0)", "B, S(1) -> S(1)", "S(1), S(0) -> P", "P, B -> P", "B, P -> P")


def report(*ops: dict[str, Any], search: bool = False) -> Any:
    data = json.dumps({"schema": 1, "ops": list(ops)}).encode()
    return check(parse_rules(data), Ops, search=search)


def test_right_rules_hold_and_none_is_missing() -> None:
    found = report(product(False, *RIGHT), search=True)
    assert (found.ops, found.cases, found.rules) == (1, 1, 5)
    assert not found.wrong
    assert not found.missing


def test_rules_of_other_attributes_are_wrong() -> None:
    """The same rules do not hold if an operand is transposed."""
    found = report(product(True, *RIGHT), search=True)
    assert [f.rule for f in found.wrong] == ["(S(0), B) -> S(0)", "(S(1), S(0)) -> P"]
    assert all("ValueError" in f.reason for f in found.wrong)
    assert {f.rule for f in found.missing} == {"(S(1), B) -> S(0)", "(S(0), S(0)) -> P"}


def test_a_wrong_number_is_reported_with_what_was_found() -> None:
    (wrong,) = report(product(False, "P, P -> P")).wrong
    assert wrong.devices == 2
    assert "result 0 is" in wrong.reason


def test_attributes_of_parts_come_from_the_evaluator() -> None:
    number = {"shape": [], "dtype": "float64", "range": [1, 2]}
    rules = ("B -> S(0)", "B -> S(1)", "P -> P")
    attributes = {"shape": [5, 7]}
    found = report(op("fill", [number], [tensor(5, 7)], *rules, attributes=attributes))
    assert found.cases == 1
    assert not found.wrong


def test_overwritten_inputs_keep_their_layout() -> None:
    inputs = [tensor(5, 4), tensor(5, 4)]
    rules = ("S(0), S(0) -> ", "S(0), B -> ", "P, P -> ")
    found = report(op("update", inputs, [], *rules, overwrites=[0]))
    assert [f.rule for f in found.wrong] == ["(S(0), B) -> "]


def test_what_cannot_be_checked_is_counted() -> None:
    large, empty = tensor(100, 100), tensor(0, 3)
    ops = [op("a", [empty], [empty]), op("b", [large], [large]), op("c", [tensor(2)], [tensor(2)])]
    other = copy.deepcopy(tensor(2)) | {"dtype": "char"}
    found = report(*ops, op("d", [other], [other]))
    assert found.cases == 0
    assert found.skipped == {
        "a tensor has no elements": 1,
        "a tensor has more than 4096 elements": 1,
        "nothing computes the op": 1,
        "numpy has no char": 1,
    }


# ------------------------------------------------------------------------------------ the command


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("rules_of_tests")
    module.evaluate, module.localize = Ops.evaluate, Ops.localize  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rules_of_tests", module)
    return "rules_of_tests"


def run(evaluator: str, file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", str(file), "--evaluator", evaluator, *arguments])


def test_ctrl_c_has_a_status_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"schema": 1, "ops": [product(False, *RIGHT)]}))
    done = run("interrupted", file)
    assert (done.exit_code, done.stderr) == (130, "Aborted!\n")


def test_the_exit_status_says_whether_all_rules_hold(evaluator: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"schema": 1, "ops": [product(False, *RIGHT)]}))
    done = run(evaluator, file, "--search")
    assert done.exit_code == 0
    assert "1 ops, 1 cases, 5 rules" in done.output
    file.write_text(json.dumps({"schema": 1, "ops": [product(True, *RIGHT)]}))
    failed = run(evaluator, file)
    assert failed.exit_code == 1
    assert (
        "wrong: product of float64[6,5], float64[6,4], case 0: (S(0), B) -> S(0)" in failed.output
    )
    data = json.loads(run(evaluator, file, "--json").output)
    assert [f["rule"] for f in data["wrong"]] == ["(S(0), B) -> S(0)", "(S(1), S(0)) -> P"]


def test_errors_of_the_command_have_no_traceback(evaluator: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text("{}")
    for arguments in (("--op", "x"), ()):
        refused = run(evaluator, file, *arguments)
        assert refused.exit_code == 1
        assert refused.output.startswith(f"Error: reading rules of {file}: the file: found []")
    file.write_text(json.dumps({"schema": 1, "ops": []}))
    assert "it has no op 'x'" in run(evaluator, file, "--op", "x").output
    assert "No module named 'nowhere'" in run("nowhere", file).output


@pytest.mark.parametrize("problem", [AssertionError("no such op"), OSError("no library")])
def test_an_evaluator_that_fails_is_named(
    problem: Exception, evaluator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise problem

    monkeypatch.setattr(sys.modules[evaluator], "evaluate", fails)
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"schema": 1, "ops": [product(False, *RIGHT)]}))
    done = run(evaluator, file)
    assert done.exit_code == 1
    assert done.output == f"Error: computing 'product': {type(problem).__name__}: {problem}\n"


@pytest.mark.parametrize("text", ["1 / 0", "def evaluate(:", "raise SystemExit(3)"])
def test_an_evaluator_that_cannot_be_imported_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_evaluator.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_evaluator", raising=False)
    with pytest.raises(RulesError, match=r"importing the evaluator 'broken_evaluator': [SZ]"):
        load_evaluator("broken_evaluator")


def test_a_file_of_which_nothing_is_checked_does_not_pass(evaluator: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"schema": 1, "ops": [op("c", [tensor(2)], [tensor(2)])]}))
    done = run(evaluator, file)
    assert "skipped 1: nothing computes the op" in done.output
    assert done.exit_code == 1


def test_an_evaluator_needs_its_functions() -> None:
    with pytest.raises(RulesError, match="no function 'evaluate'"):
        load_evaluator("json")
