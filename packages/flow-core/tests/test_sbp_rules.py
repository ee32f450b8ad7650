"""The SBP rules of core's ops hold, and none is missing."""

from __future__ import annotations

import numpy as np
import pytest

from flow_core.plugins.host import default_registry
from flow_core.sbp import B, P, S
from flow_core.testing import Gap, SbpRuleKit
from flow_core.testing.checks import query
from flow_core.testing.sbp_rules import gather, listed, scatter

UPDATES = (
    "adam_update", "advance_step", "assign", "centered_rmsprop_update",
    "dynamic_loss_scale_schedule",
    "lamb_update", "lars_update", "logical_slice_assign", "momentum_update", "rmsprop_update",
    "sgd_update",
)  # fmt: skip
LEAVES = ("input", "variable", "literal")
MASK = "a mask is never a sum of masks"
BETWEEN_VIEWS = ("cast_to_mirrored", "cast_from_mirrored")
SPECIAL = "holds for this sample's attributes only"


def unlisted(op: str, kind: str, reason: str) -> Gap:
    return Gap(op, kind, reason, ("no_rule_is_missing",))  # type: ignore[arg-type]


class TestSbpRules(SbpRuleKit):
    plugin = "core.ops"
    gaps = (
        *(Gap(op, "notyet", "changes variables: no reference to run") for op in UPDATES),
        *(Gap(op, "never", "a leaf of the graph: nothing to compute") for op in LEAVES),
        *(unlisted(op, "never", "no work: parts are passed on") for op in BETWEEN_VIEWS),
        Gap("fused", "notyet", "a group has no reference and no samples of its own"),
        unlisted("boxing", "never", "is what rules are turned into, has none itself"),
        unlisted("CategoricalOrdinalEncode", "never", "parts of a sum of tables are full tables"),
        unlisted("cast", "never", "sums of integers may leave the range of a half type"),
        unlisted("cast_like", "never", "sums of integers may leave the range of a half type"),
        unlisted("dropout", "never", MASK),
        unlisted("dropout_grad", "never", MASK),
        unlisted("in_top_k", "never", SPECIAL),
        unlisted("scalar_div_by_tensor", "never", SPECIAL),
        unlisted("learning_rate_schedule", "never", SPECIAL),
        unlisted("split_like", "never", "only mixtures of layouts among unread inputs"),
        unlisted("adam_bias_correction_learning_rate", "notyet", "linear in the learning rate"),
        unlisted("l1_l2_regularize_gradient", "notyet", "linear when l1 is 0"),
    )


def test_matmul_has_six_signatures() -> None:
    spec = default_registry().ops["matmul"]
    arrays = np.arange(15.0).reshape(3, 5), np.arange(20.0).reshape(5, 4)
    asked = query(spec, arrays, {})
    found = set(map(str, TestSbpRules().valid(spec, asked, arrays)))
    assert found == {
        "(B, B) -> B", "(S(0), B) -> S(0)", "(B, S(1)) -> S(1)", "(S(1), S(0)) -> P",
        "(P, B) -> P", "(B, P) -> P",
    }  # fmt: skip
    assert found == {*map(str, listed(spec, asked)), "(B, B) -> B"}


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("sbp", [S(0), S(1), B, P], ids=str)
def test_scattered_is_gathered(sbp, parts, dtype) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    array = rng.integers(0, 9, (4, 3)).astype(dtype)
    held = scatter(array, sbp, parts, rng)
    assert len(held) == parts
    np.testing.assert_allclose(gather(held, sbp), array, atol=1e-12)
