"""The core's SBP rules are proven and complete, and mutants of them are detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flow_core.ops.control import cond, scan
from flow_core.ops.system import summary
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import Sample, SbpContext
from flow_core.sharding.sbp import P, S, Signature, Signatures
from flow_core.testing import Gap, SbpRuleKit
from flow_core.testing.prover_cases import cases
from flow_rules.prover import Case, Prover

pytestmark = pytest.mark.arithmetic

SPECS = default_registry().ops
LEAVES = ("input", "variable")
BODIES = (*scan.OPS, *cond.OPS)


def unlisted(op: str, reason: str) -> Gap:
    return Gap(op, "never", reason, ("no_rule_is_missing",))


GAPS = (
    *(Gap(op, "never", "a leaf of the graph: nothing to compute") for op in LEAVES),
    *(Gap(spec.type, "never", "writes a file: nothing is split") for spec in summary.OPS),
    Gap("python_kernel", "never", "is a function of a program"),
    *(unlisted(spec.type, "splits of the inputs of a body alone") for spec in BODIES),
    unlisted("tuple_identity", "only mixtures of layouts"),
    unlisted("ssp_variable_proxy", "at step 0 all copies are equal, so that they can be split"),
    unlisted("fake_quantization", "keeps order only where the scale is positive, as a scale is"),
)
SAMPLE = (
    "broadcast_add", "broadcast_greater", "concat", "dropout", "gather", "matmul", "negative",
    "one_hot", "random_mask_like", "reduce_max", "reduce_sum", "reshape", "softmax", "transpose",
    "unsorted_segment_sum",
)  # fmt: skip


@pytest.mark.slow
class TestSbpRules(SbpRuleKit):
    plugin = "core.ops"
    gaps = GAPS
    cases = 1
    searched = SAMPLE


@pytest.mark.slow
@pytest.mark.exhaustive
class TestAllSbpRules(TestSbpRules):
    cases = None
    searched = None


def prover(op: str, *arrays: Any, **attrs: Any) -> Prover:
    (case,) = cases(SPECS[op], [Sample(arrays, attrs)])
    return Prover(case)


def matmul_rules(a: bool, b: bool, batch: int) -> set[str]:
    """Return the rules of a product in terms of the stored operands' axes."""
    m, k_a = (batch, batch + 1)[:: -1 if a else 1]
    k_b, n = (batch, batch + 1)[:: -1 if b else 1]
    return {
        f"(S({m}), B) -> S({batch})", f"(B, S({n})) -> S({batch + 1})",
        f"(S({k_a}), S({k_b})) -> P", "(P, B) -> P", "(B, P) -> P",
        *(f"(S({i}), S({i})) -> S({i})" for i in range(batch)),
    }  # fmt: skip


@pytest.mark.representative(
    r"\[(True-False-0|False-True-1)\]",
    "one transposed operand, the left and the right; without and with a batch axis",
)
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_products_have_exactly_the_expected_rules(a: bool, b: bool, batch: int) -> None:
    """Six signatures including the all-broadcast one, plus one per batch axis."""
    left = np.ones((*(2, 3)[:batch], *((5, 4) if a else (4, 5))))
    right = np.ones((*(2, 3)[:batch], *((6, 5) if b else (5, 6))))
    asked = prover("batch_matmul" if batch else "matmul", left, right, transpose_a=a, transpose_b=b)
    assert {*map(str, asked.valid())} == matmul_rules(a, b, batch)
    assert asked.prove()


@pytest.mark.slow
def test_wrong_rules_are_rejected() -> None:
    """Test the prover on an op with replaced rules."""
    spec, wrong = SPECS["matmul"], Signature((S(0), S(0)), (P,))

    def changed(rules: Callable[[SbpContext], Signatures]) -> Case:
        sample = Sample((np.ones((4, 5)), np.ones((5, 6))))
        return next(iter(cases(replace(spec, sbp=rules), [sample])))

    assert not Prover(changed(lambda ctx: (*spec.sbp(ctx), wrong))).prove()
    assert not Prover(changed(lambda ctx: spec.sbp(ctx)[1:])).prove()
    proof = Prover(changed(lambda ctx: (wrong,))).prove()
    assert [str(rule) for rule, *_ in proof.wrong] == ["(S(0), S(0)) -> P"] * 3
    assert len(proof.missing) == 5
    assert "wrong on 2 devices: (S(0), S(0)) -> P" in str(proof)
