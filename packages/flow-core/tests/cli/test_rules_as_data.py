"""The rules that `flow ops --json` writes are read by flow-rules, and hold at their cases."""

from __future__ import annotations

import json

import pytest

from flow_core.observe.op_catalog import catalog, catalog_json, op_entry
from flow_core.plugins.host import default_registry
from flow_core.testing import rules as evaluator
from flow_rules import check
from flow_rules.files import RulesFile, parse_rules

pytestmark = pytest.mark.arithmetic


def written(*ops: str) -> RulesFile:
    entries = [op_entry(default_registry(), op) for op in sorted(ops)]
    return parse_rules(json.dumps(catalog_json(entries)).encode())


@pytest.mark.parametrize("op", ["matmul", "reshape", "sgd_update", "random_mask_like"])
def test_rules_hold_at_their_cases(op: str) -> None:
    """Attributes of parts, such as shapes and places of random numbers, are those of the op."""
    report = check(written(op), evaluator)
    assert report.cases > 2
    assert report.rules > 2
    assert not report.wrong


def test_a_rule_of_another_case_is_found() -> None:
    """The rules of a transposed operand, stated for one that is not transposed, are wrong."""
    document = catalog_json([op_entry(default_registry(), "matmul")])
    (matmul,) = json.loads(json.dumps(document["ops"]))
    plain, transposed = matmul["cases"][:2]
    assert transposed["attributes"]["transpose_a"]
    plain["rules"] = transposed["rules"]
    matmul["cases"] = [plain]
    report = check(parse_rules(json.dumps({**document, "ops": [matmul]}).encode()), evaluator)
    assert {f.rule for f in report.wrong} == {"(S(1), B) -> S(0)", "(S(0), S(0)) -> P"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_rule_of_any_op_is_wrong_at_its_case() -> None:
    entries = catalog(default_registry())
    report = check(parse_rules(json.dumps(catalog_json(entries)).encode()), evaluator)
    assert not report.wrong, "\n".join(map(str, report.wrong))
    assert report.ops > 250
    assert report.rules > 5000
