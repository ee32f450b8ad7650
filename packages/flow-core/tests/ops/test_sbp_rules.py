"""The core's SBP rules are proven and complete, and mutants of them are detected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flow_core.ops.system import summary
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import Sample
from flow_core.sharding.sbp import B, P, S, Sbp, Signature
from flow_core.testing import Gap, SbpRuleKit
from flow_core.testing.prover import Prover
from flow_core.testing.prover_cases import cases
from flow_core.testing.scattering import gather, scatter

pytestmark = pytest.mark.arithmetic

SPECS = default_registry().ops
LEAVES = ("input", "variable")


def unlisted(op: str, reason: str) -> Gap:
    return Gap(op, "never", reason, ("no_rule_is_missing",))


GAPS = (
    *(Gap(op, "never", "a leaf of the graph: nothing to compute") for op in LEAVES),
    *(Gap(spec.type, "never", "writes a file: nothing is split") for spec in summary.OPS),
    Gap("python_kernel", "never", "is a function of a program"),
    unlisted("gradient_gate", "the condition is B, as the gradient needs it"),
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


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("sbp", [S(0), S(1), B, P], ids=str)
def test_gather_inverts_scatter(sbp: Sbp, parts: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 9, (4, 3)).astype(dtype)
    held = scatter(array, sbp, parts, rng)
    assert len(held) == parts
    np.testing.assert_allclose(gather(held, sbp), array, atol=1e-12)


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
    case = prover("matmul", np.ones((4, 5)), np.ones((5, 6))).case
    rules = case.spec.sbp
    wrong = Signature((S(0), S(0)), (P,))
    for changed in (lambda ctx: (*rules(ctx), wrong), lambda ctx: rules(ctx)[1:]):
        spec = replace(case.spec, sbp=changed)
        assert not Prover(replace(case, spec=spec)).prove()
    proof = Prover(replace(case, spec=replace(case.spec, sbp=lambda ctx: (wrong,)))).prove()
    assert [str(rule) for rule, *_ in proof.wrong] == ["(S(0), S(0)) -> P"] * 3
    assert len(proof.missing) == 5
    assert "wrong on 2 devices: (S(0), S(0)) -> P" in str(proof)
