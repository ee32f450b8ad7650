"""Each kit finds the mistakes planted in plugins of its kind, and none in right ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from planted import failures, inference, kernels, others

KINDS: Mapping[str, Any] = {"kernels": kernels, "inference": inference, "others": others}
LEAST = 20
"""The least number of planted defects of kernels and inference."""


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, module in KINDS.items() for name in module.DEFECTS],
    ids=lambda text: text.replace(" ", "_"),
)
def test_planted_defects_are_found(kind: str, name: str) -> None:
    module = KINDS[kind]
    *parts, check = module.DEFECTS[name]
    found = dict(failures(module.kit(*parts)))
    assert check in found, f"found by {list(found) or 'no check'}"


@pytest.mark.parametrize("name", kernels.RIGHT)
def test_right_kernels_pass(name: str) -> None:
    assert not list(failures(kernels.kit(*kernels.RIGHT[name])))


@pytest.mark.parametrize("spec", inference.RIGHT, ids=lambda spec: spec.type)
def test_right_inference_passes(spec: Any) -> None:
    assert not list(failures(inference.kit(spec, spec.infer)))


@pytest.mark.parametrize("make", others.RIGHT)
def test_other_right_plugins_pass(make: Any) -> None:
    assert not list(failures(make()))


@pytest.mark.parametrize("kind", ["kernels", "inference", "others"])
def test_there_are_many_defects(kind: str) -> None:
    assert len(KINDS[kind].DEFECTS) >= LEAST
