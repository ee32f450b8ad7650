"""The text of updates, run as Python in float64, against the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.ir.formulas import PYTHON
from flow_core.ir.update_rules import BY_TYPE, COMMON, TABLE, Update, computed
from flow_core.ops.training.update_references import update_inputs
from flow_core.ops.training.update_source import Phase, update_source

FUNCTIONS = {
    "sqrt_": np.sqrt, "sign_": np.sign, "square_": np.square,
    "positive_": lambda x: np.maximum(x, 0.0),
}  # fmt: skip
PENALTIES = {"l1": 0.1, "l2": 0.2}


def python(text: str) -> str:
    """Return a C expression without casts, which Python reads."""
    return text.replace("(float)", "")


def run(phase: Phase, numbers: dict[str, float], arrays: dict[str, Any]) -> None:
    """Compute the numbers and the loop of a phase, and store its arrays and norms."""
    for name, text in phase.numbers.items():
        numbers[name] = eval(text, {**PYTHON, **numbers})
    scope: dict[str, Any] = {**PYTHON, **FUNCTIONS}
    scope |= {name: eval(text, {**PYTHON, **numbers}) for text, name in phase.coefficients.items()}
    scope |= {local: arrays[name] for local, name in phase.reads.items()}
    for line in phase.lines:
        kind, local, _, value = line.removesuffix(";").removeprefix("const ").split(" ", 3)
        assert kind == "float"
        scope[local] = eval(python(value), scope)
    for k, text in enumerate(phase.norms):
        numbers[f"norm{k}"] = float(np.sqrt(np.sum(np.square(eval(python(text), scope)))))
    arrays |= {name: scope[local] for name, local in phase.stores.items()}


def values_of(row: Update, **attrs: float) -> dict[str, Any]:
    """Return inputs of a rule by name, the attributes, and a weight decay."""
    given = update_inputs(np.random.default_rng(3), row, (6,))
    names = ("model", "model_diff", "rate", *row.inputs[3:])
    values = {n: x if x.shape else x.item() for n, x in zip(names, given, strict=True)}
    return {
        **COMMON,
        **row.attrs,
        "scale": 0.5,
        "weight_decay": 0.05,
        "size": 6.0,
        **values,
        **attrs,
    }


@pytest.mark.parametrize("penalties", [True, False])
@pytest.mark.parametrize("type_", BY_TYPE)
def test_text_computes_the_formula(type_: str, penalties: bool) -> None:
    row = BY_TYPE[type_]
    values = values_of(row, **(PENALTIES if penalties else {}))
    expected = computed(row, **values)
    arrays = {name: x for name, x in values.items() if isinstance(x, np.ndarray)}
    numbers = {name: x for name, x in values.items() if name not in arrays}
    for phase in update_source(row, "float", penalties):
        run(phase, numbers, arrays)
    found = {**numbers, **arrays}
    for name, value in zip(("model", *row.states, *row.numbers), expected, strict=True):
        np.testing.assert_allclose(found[name], value, 1e-12, err_msg=name)


def test_a_change_of_the_model_is_added_to_it() -> None:
    """In float32, 1 - 1e-10 is 1, so that a product with it would lose the decay."""
    (phase,) = update_source(BY_TYPE["sgd_update"], "float", penalties=False)
    (line,) = phase.lines
    assert line.startswith("const float model1 = model0 + (c0 * model0")
    text = next(text for text, name in phase.coefficients.items() if name == "c0")
    assert eval(text, {**PYTHON, "rate": 1e-4, "weight_decay": 1e-6}) == pytest.approx(
        -1e-10, rel=1e-6
    )


def test_only_norms_need_a_second_phase() -> None:
    for row in TABLE:
        assert len(update_source(row, "float", penalties=True)) == 2 - row.local
