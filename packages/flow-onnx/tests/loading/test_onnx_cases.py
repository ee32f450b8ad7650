"""The onnx package's own cases of operators: each is right or refused with a reason."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from onnx_cases.backend import KINDS, cases, variant, verdict


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_case_of_the_onnx_package_is_right_or_refused(kind: str, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for name, model, inputs, outputs, tolerance in cases():
        if len(model.graph.input) != len(inputs):
            continue  # omitted inputs
        changed, feeds = variant(model, inputs, kind)
        found[name] = verdict(tmp_path / "m.onnx", changed, feeds, outputs, tolerance)
    counts = Counter(
        text if text == "passed" else text.partition(":")[0] for text in found.values()
    )
    assert not {name: text for name, text in found.items() if text.startswith("wrong")}
    page = (Path(__file__).parents[4] / "docs" / "onnx.md").read_text(encoding="utf-8")
    (numbers,) = re.findall(r"(\d+), (\d+) and (\d+) of them are right; none is wrong", page)
    assert counts["passed"] == int(numbers[KINDS.index(kind)])
