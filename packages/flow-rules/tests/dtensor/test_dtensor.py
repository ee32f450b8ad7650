"""DTensor's rules are read and checked from outside; `nox -s "peer(dtensor)"` installs PyTorch."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from flow_rules.cli import main, show_totals
from flow_rules.layouts import B, P, Partial, Rule, S

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch: Any = pytest.importorskip(
        "torch", reason='PyTorch is not installed: nox -s "peer(dtensor)"'
    )
    pytest.importorskip("expecttest", reason='expecttest is not installed: nox -s "peer(dtensor)"')

from flow_rules.dtensor import check as dtensor_check  # noqa: E402
from flow_rules.dtensor.derived import derived  # noqa: E402
from flow_rules.dtensor.samples import Call  # noqa: E402
from flow_rules.dtensor.strategies import registered  # noqa: E402
from flow_rules.prover import Prover  # noqa: E402


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Undo what PyTorch changes in the process when its compiler and its samples are imported."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])


def call(op: Any, *args: Any) -> Call:
    leaves, tree = torch.utils._pytree.tree_flatten((args, {}))
    return Call(op, tuple(leaves), tree)


def test_the_rules_of_a_product_are_those_that_are_known() -> None:
    a, b = torch.randn(5, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    _, case, _ = dtensor_check._case(call(torch.ops.aten.mm.default, a, b))
    assert case is not None
    prover = Prover(case)
    known = {
        Rule((S(0), B), (S(0),)), Rule((B, S(1)), (S(1),)), Rule((S(1), S(0)), (P,)),
        Rule((P, B), (P,)), Rule((B, P), (P,)),
    }  # fmt: skip
    assert known <= {*case.rules(2)}
    assert not prover.wrong(prover.rules)


def test_local_shapes_are_those_of_each_device() -> None:
    """The shape of a view is an attribute, which differs between 2 devices that split 5 rows."""
    x = torch.randn(5, 6, dtype=torch.float64)
    _, case, declared = dtensor_check._case(call(torch.ops.aten.view.default, x, [5, 2, 3]))
    assert case is not None
    assert declared is not None
    assert declared.is_local
    assert Rule((S(0),), (S(0),)) in case.rules(2)
    prover = Prover(case)
    assert not prover.wrong(prover.rules)


def test_a_planted_rule_is_found() -> None:
    x = torch.randn(5, 6, dtype=torch.float64)
    _, case, _ = dtensor_check._case(call(torch.ops.aten.relu.default, x))
    assert case is not None
    wrong = Rule((P,), (P,))
    planted = replace(case, rules=lambda parts: (*case.rules(parts), wrong))
    prover = Prover(planted)
    assert {rule for rule, *_ in prover.wrong(prover.rules)} == {wrong}


ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        (ATEN.abs_.default, "(S(0)) -> S(0)"),
        (ATEN.add.out, "(S(0), S(0), S(0)) -> S(0)"),
        (ATEN.bitwise_and.Scalar, "(S(1)) -> S(1)"),
        (ATEN._foreach_add.List, "(S(0), S(0)) -> S(0)"),
        (ATEN._foreach_neg_.default, "(S(0), S(1)) -> "),  # returns nothing
    ],
    ids=str,
)
def test_calls_are_made_for_ops_without_samples(op: Any, rule: str) -> None:
    calls, _ = derived(op, {}, 3)
    assert calls
    _, case, _ = dtensor_check._case(calls[0])
    assert case is not None
    assert rule in map(str, case.rules(2))
    prover = Prover(case)
    assert not prover.wrong(prover.rules)


@pytest.mark.parametrize("op", [ATEN.add.out, ATEN.silu_backward.grad_input], ids=str)
def test_a_tensor_to_write_into_has_the_layout_of_the_result(op: Any) -> None:
    (one, *_), _ = derived(op, {}, 1)
    _, case, _ = dtensor_check._case(one)
    assert case is not None
    found = case.rules(2)
    assert "(S(1), S(1), S(1)) -> S(1)" in map(str, found)
    assert all(rule.inputs[-1] == rule.outputs[0] for rule in found)


def test_missing_rules_keep_the_layout_of_a_tensor_that_is_overwritten() -> None:
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    totals = dtensor_check.Totals()
    dtensor_check._check(call(ATEN.add.Tensor, x, y), totals, search=True)
    assert "(B, P(max)) -> P(max)" in [found.rule for found in totals.missing]
    totals = dtensor_check.Totals()
    dtensor_check._check(call(ATEN.add_.Tensor, x, y), totals, search=True)
    assert "(B, P(max)) -> P(max)" not in [found.rule for found in totals.missing]


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (call(ATEN.relu.default, torch.ones(5, 6, dtype=torch.float64)), ""),
        (call(ATEN.neg.default, torch.arange(4)), "an input has few integers"),
        (derived(ATEN.add.out, {}, 1)[0][0], "it writes into given tensors"),
        (
            call(ATEN.nextafter.default, torch.ones(5, 1).double(), torch.zeros(5).double()),
            "a result differs from an input by less",
        ),
    ],
    ids=str,
)
def test_ops_that_are_not_searched_are_listed(
    one: Call, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = dtensor_check._check_op(one.op, {one.op: [one]}, search=True)
    assert totals.ops == 1
    assert totals.searched == (not reason)
    show_totals(totals, whole=True, searched=True)
    assert (f"not searched: {one.op}: {reason}" in capsys.readouterr().out) == bool(reason)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
def test_an_op_whose_search_ends_the_process_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtensor_check, "registered", lambda: {ATEN.neg.default})
    monkeypatch.setattr(dtensor_check, "record", lambda *_: {})
    monkeypatch.setattr(Prover, "missing", lambda *_: os._exit(3))
    totals = dtensor_check.check_dtensor(search=True)
    assert (totals.ops, totals.searched, totals.unchecked) == (1, 0, {})
    assert totals.unsearched == {"aten.neg.default": dtensor_check.CRASH}


@pytest.mark.parametrize("condition", [True, False])
def test_missing_rules_hold_for_both_truth_values(condition: bool) -> None:
    x, y = (torch.randn((), dtype=torch.float64) for _ in range(2))
    totals = dtensor_check.Totals()
    one = call(ATEN.where.self, torch.tensor(condition), x, y)
    dtensor_check._check(one, totals, search=True)
    found = {each.rule for each in totals.missing}
    assert "(B, P, P) -> P" in found
    assert not found & {"(B, B, P) -> B", "(B, P, B) -> P", "(B, P, B) -> B", "(B, B, P) -> P"}


def test_missing_rules_hold_for_other_draws() -> None:
    """This softplus falls where its input exceeds 0.2 / 3."""
    x = torch.linspace(-2, 2, 20, dtype=torch.float64)
    _, case, _ = dtensor_check._case(call(ATEN.softplus.default, x, 3, 0.2))
    assert case is not None
    largest = Rule((Partial("max"),), (Partial("max"),))
    assert dtensor_check.confirmed(case, [largest]) == []
    _, case, _ = dtensor_check._case(call(ATEN.softplus.default, x, 3, 20))
    assert case is not None
    assert dtensor_check.confirmed(case, [largest]) == [largest]
    _, case, _ = dtensor_check._case(call(ATEN.nan_to_num.default, x))
    assert case is not None
    assert dtensor_check.confirmed(case, [Rule((P,), (P,))]) == []  # a term may be NaN


def test_boundaries_are_sorted() -> None:
    """PyTorch does not define the results for others."""
    x, boundaries = torch.randn(5, 6, dtype=torch.float64), torch.tensor([3.0, -1.0, 2.0, 1.0])
    _, case, _ = dtensor_check._case(call(ATEN.bucketize.Tensor, x, boundaries.double()))
    assert case is not None
    assert all((np.diff(draw[1]) >= 0).all() for draw in case.draws)
    assert "(B, S(0)) -> P" in map(str, case.rules(2))
    prover = Prover(case)
    assert not prover.wrong(prover.rules)


def test_matrices_are_not_nearly_singular() -> None:
    """The pseudoinverse of others depends on the last bits, which differ in parts of a batch."""
    singular = torch.tensor([[0.1, 0.3], [0.3, 0.9]], dtype=torch.float64).expand(2, 2, 2)
    one = call(ATEN.linalg_pinv.atol_rtol_tensor, singular.contiguous())
    assert not dtensor_check._is_stable(one, tuple(x.numpy() for x in one.tensors))
    regular = call(ATEN.linalg_pinv.atol_rtol_tensor, torch.eye(2, dtype=torch.float64))
    assert dtensor_check._is_stable(regular, tuple(x.numpy() for x in regular.tensors))


def test_a_call_of_a_related_op_is_used() -> None:
    x = torch.randn(5, 6, dtype=torch.float64)
    one = call(ATEN.mm.default, x, x.T.contiguous())
    calls, _ = derived(ATEN.mm.out, {ATEN.mm.default: [one]}, 3)
    assert [[tuple(t.shape) for t in c.tensors] for c in calls] == [[(5, 6), (6, 5), (5, 5)]]


def test_the_reason_is_given_if_no_call_is_made() -> None:
    calls, reason = derived(ATEN._scaled_mm.default, {}, 3)
    assert not calls
    assert reason.startswith("ValueError: Invalid scaling")


def test_ops_without_a_call_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = {ATEN.neg.default, ATEN.neg_.default, ATEN._scaled_mm.default}
    monkeypatch.setattr(dtensor_check, "registered", lambda: ops)
    monkeypatch.setattr(dtensor_check, "record", lambda *_: {})
    totals = dtensor_check.check_dtensor()
    assert (totals.registered, totals.ops, totals.derived) == (3, 2, 2)
    assert [*totals.unchecked] == ["aten._scaled_mm.default"]
    assert totals.unchecked["aten._scaled_mm.default"].startswith("no call: ")
    assert not totals.wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
def test_a_call_that_ends_the_process_is_listed() -> None:
    found = dtensor_check.apart(lambda: os._exit(3), "aten.crash")
    assert [*found.unchecked] == ["aten.crash"]
    assert found.ops == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
def test_a_check_that_fails_is_no_call_that_ends_the_process() -> None:
    with pytest.raises(RuntimeError, match=r"checking aten.op:\n(.*\n)+ZeroDivisionError"):
        dtensor_check.apart(lambda: 1 // 0, "aten.op")


def test_parts_with_fewer_results_have_no_rule() -> None:
    """A list of rows has fewer tensors on a device that has fewer rows."""
    x = torch.randn(4, 6, dtype=torch.float64)
    _, case, _ = dtensor_check._case(call(ATEN.unbind.int, x))
    assert case is not None
    found = [str(rule.inputs[0]) for rule in Prover(case).valid()]
    assert "S(0)" not in found
    assert "S(1)" in found


def test_nothing_is_written_into_tensors_of_another_shape() -> None:
    """Some ops of PyTorch would write beyond their end."""
    x = torch.randn(5, 6, dtype=torch.float64)
    (one, *_), _ = derived(ATEN.mm.out, {ATEN.mm.default: [call(ATEN.mm.default, x, x.T)]}, 1)
    arrays = [t.numpy() for t in one.tensors]
    one.run(arrays)
    with pytest.raises(ValueError, match="another shape"):
        one.run([*arrays[:2], arrays[2][:4]])


def test_most_ops_are_registered() -> None:
    assert len(registered()) > 1000
    assert torch.ops.aten.mm.default in registered()


def test_the_command_reports_versions_and_counts() -> None:
    done = CliRunner().invoke(main, ["dtensor", "--samples", "^(mm|nn.functional.relu)$", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    assert data["versions"]["torch"] == torch.__version__
    assert data["registered"] > data["ops"] >= 2
    assert data["rules"] > 10
    assert not data["wrong"]
