"""The core's SBP rules are proven and complete, and mutants of them are detected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flow_core.ir.update_rules import BY_TYPE, INDEXED, INDEXED_PREFIX
from flow_core.ops.array.select import LAST
from flow_core.ops.system import summary
from flow_core.ops.training.summed_updates import ROWS as SUMMED
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import OpSpec, Sample
from flow_core.sharding.sbp import B, P, S, Sbp, Signature
from flow_core.testing import Gap, SbpRuleKit
from flow_core.testing.prover import Prover
from flow_core.testing.prover_cases import cases
from flow_core.testing.scattering import gather, scatter

pytestmark = [pytest.mark.arithmetic, pytest.mark.sampled(0.5)]

SPECS = default_registry().ops
LEAVES = ("input", "variable", "literal")
BETWEEN_VIEWS = ("cast_to_mirrored", "cast_from_mirrored")


def unlisted(op: str, reason: str) -> Gap:
    return Gap(op, "never", reason, ("no_rule_is_missing",))


GAPS = (
    *(Gap(op, "never", "a leaf of the graph: nothing to compute") for op in LEAVES),
    *(Gap(spec.type, "never", "writes a file: nothing is split") for spec in summary.OPS),
    Gap("python_kernel", "never", "is a function of a program"),
    Gap("fused", "never", "groups are made of what is split already"),
    *(Gap(op, "never", "made of what is split already") for op in SUMMED),
    *(unlisted(op, "no work: parts are passed on") for op in BETWEEN_VIEWS),
    unlisted("tuple_identity", "only mixtures of layouts"),
    unlisted("fake_quantization", "keeps order only where the scale is positive, as a scale is"),
    unlisted("ssp_variable_proxy", "overwrites its ring, of which the reference says nothing"),
    unlisted("boxing", "is what rules are turned into, has none itself"),
)
SAMPLE = (
    "broadcast_add", "broadcast_greater", "concat", "dropout", "gather", "matmul", "negative",
    "one_hot", "random_mask_like", "reduce_max", "reduce_sum", "reshape", "softmax", "transpose",
    "unsorted_segment_sum",
)  # fmt: skip


def numbers(rng: Any, *shape: int) -> Any:
    return (rng.integers(8, 33, shape) / 16).astype(np.float32)


def update_samples(op: str, rng: Any) -> Iterator[Sample]:
    """Yield inputs of the ops that change variables, in their own types."""
    row, shape = BY_TYPE[op], (5, 6)
    step = (np.array(3, np.int64),) if row.step else ()
    states = (numbers(rng, *shape) for _ in row.states)
    more = (np.array(0.5, np.float32) for _ in row.numbers)
    model, diff = numbers(rng, *shape), numbers(rng, *shape)
    given = model, diff, np.array(0.5, np.float32), *step, *states, *more
    yield Sample(given, {"weight_decay": 0.5, "l2": 0.25})
    yield Sample((*given, np.array(2.0, np.float32)), note="scaled")


def row_update_samples(spec: OpSpec, rng: Any) -> Iterator[Sample]:
    """Yield tables with looked-up rows, including a repeated row and an index out of range."""
    states = (numbers(rng, 5, 6) for _ in spec.inputs[4:])
    index = np.array([[3, 0], [3, 9]], np.int32)
    rate = np.array(0.5, np.float32)
    given = numbers(rng, 5, 6), index, numbers(rng, 2, 2, 6), rate, *states
    yield Sample(given, {"weight_decay": 0.5})


def other_samples(rng: Any) -> dict[str, Sample]:
    counter, scale = np.array(3, np.int64), np.array(8.0, np.float32)
    part = {"start": (1, 0), "stop": (4, LAST), "step": (1, 1)}
    return {
        "assign": Sample((numbers(rng, 5, 6), numbers(rng, 5, 6))),
        "advance_step": Sample((counter,)),
        "dynamic_loss_scale_schedule": Sample((counter, scale, counter)),
        "logical_slice_assign": Sample((numbers(rng, 5, 4), numbers(rng, 3, 4)), part),
    }


class TestSbpRules(SbpRuleKit):
    plugin = "core.ops"
    gaps = GAPS
    cases = 1
    searched = SAMPLE

    def samples(self, spec: OpSpec, rng: Any) -> Iterable[Sample]:
        if spec.type in BY_TYPE:
            return update_samples(spec.type, rng)
        if spec.type.removeprefix(INDEXED_PREFIX) in INDEXED:
            return row_update_samples(spec, rng)
        others = other_samples(rng)
        return [others[spec.type]] if spec.type in others else super().samples(spec, rng)


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
