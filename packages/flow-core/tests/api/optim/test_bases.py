"""Incomplete subclasses of the abstract bases cannot be instantiated."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from flow_core.api.optim.gradient_limits import ClipGradientConf, LossScalePolicy
from flow_core.api.optim.learning_rates import WarmupConf
from flow_core.api.optim.optimizer import Optimizer

PACKAGES = Path(__file__).parents[4]
BASES = {
    ClipGradientConf: {"clip_conf"},
    LossScalePolicy: {"SetLossScaleFieldsInTrainConf", "scale"},
    WarmupConf: {"_factor"},
    Optimizer: {"update"},
}


@pytest.mark.parametrize(
    ("base", "missing"), [(base, name) for base, names in BASES.items() for name in sorted(names)]
)
def test_incomplete_subclasses_cannot_be_instantiated(base: type, missing: str) -> None:
    others = dict.fromkeys(BASES[base] - {missing})
    incomplete = type("Incomplete", (base,), others)
    with pytest.raises(TypeError, match=rf"abstract class Incomplete .*{missing}"):
        incomplete()


@pytest.mark.slow
def test_no_method_raises_not_implemented_error() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in PACKAGES.glob("*/src/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and ast.unparse(node.exc).partition("(")[0] == "NotImplementedError"
    ]
    assert found == []
