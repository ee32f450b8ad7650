"""The page of measurements, the README's table, and what `nox -s bench` calls a fall."""

from __future__ import annotations

import importlib.util
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = (
    "mlp", "lenet", "mobilenet", "resnet50", "bert_mini", "bert_base", "wide_deep_sgd",
    "wide_deep_adam",
)  # fmt: skip


@pytest.fixture(scope="module")
def report() -> Any:
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_records(report: Any) -> None:
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == report.page(report.tables())


def test_the_readme_has_the_worst_ratio_of_all_machines(report: Any) -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| ((?:training step|prediction), \w+) \|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == 4
    for group, cells in rows:
        for name, cell in zip(COLUMNS, cells.split("|"), strict=True):
            suffix = " b1" if group.startswith("prediction") else ""
            worst = report.worst(group, name + suffix, report.tables())
            assert cell.strip() == ("" if worst is None else f"{worst:.2f}"), (group, name)


def test_a_ratio_that_grew_by_more_than_a_tenth_is_named(report: Any) -> None:
    old = report.tables()[0]
    new = deepcopy(old)
    assert report.same_machine(new, report.tables()) == old
    first, second, third = new["rows"][:3]
    first["ms"] *= 1.11
    second["ms"] *= 1.09
    third["peer_ms"] *= 0.5
    new["rows"].append(report.row("serving", "new", 1.0, "peer", 0.1))
    lines = report.fallen_back(new, old)
    assert [line.split(": ")[1] for line in lines] == [first["name"], third["name"]]
    before = old["rows"][0]
    assert f"was {before['ms'] / before['peer_ms']:.2f}" in lines[0]


def test_tables_of_other_machines_are_not_compared(report: Any) -> None:
    new = deepcopy(report.tables()[0])
    new["machine"]["cores"] = 64
    assert report.same_machine(new, report.tables()) is None
    assert set(report.machine()) == set(new["machine"])


def test_rows_that_are_not_measured_again_are_kept(report: Any) -> None:
    old = report.tables()[0]
    again = {**old["rows"][0], "ms": 0.5}
    new = {**deepcopy(old), "date": "later", "versions": {"another": "3"}, "rows": [again]}
    found = report.merged(new, old)
    assert found["rows"] == [*old["rows"][1:], again]
    assert (found["date"], found["versions"]) == ("later", {**old["versions"], "another": "3"})
    name = next(iter(old["versions"]))
    with pytest.raises(SystemExit, match="measure all rows without --only"):
        report.merged({**new, "versions": {name: "0"}}, old)


def test_patterns_choose_networks_of_a_group(report: Any) -> None:
    names = ["mlp", "resnet50"]
    choice = report.Choice(["prediction, int8: *", "*: resnet50"])
    assert choice.of("prediction, int8", names) == names
    assert choice.of("training step, float32", names) == ["resnet50"]
    assert report.Choice([]).of("serving", names) == names
