"""Faults of each kind: detected, named, started again, with the right weights at the end."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fault_table
from two_hosts import why_not


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    fault_table.undisturbed(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("damage", 5),
        *(
            pytest.param(kind, step, marks=pytest.mark.slow)
            for kind, step in (("kill", 1), ("stop", 3), ("raise", 7), ("link", 4), ("host", 6))
        ),
    ],
)
def test_a_fault_costs_no_result(kind: str, step: int, tmp_path: Path, right: Path) -> None:
    reason = why_not() if kind in fault_table.OUTSIDE else None
    if reason is not None:
        pytest.skip(reason)
    with fault_table.place(kind) as hosts:
        found = fault_table.strike(kind, step, tmp_path, right, hosts)
    assert found.seconds is not None, found.output
    assert found.restarted, found.output
    assert found.passed_over, found.output
    assert found.right, found.output
    assert "rank 0: on " in found.output
    limit = fault_table.SILENCE + 12 if kind in ("stop", *fault_table.OUTSIDE) else 10
    assert found.seconds < limit


@pytest.mark.exhaustive
def test_a_hundred_faults() -> None:
    outcomes = fault_table.run(100, seed=0)
    bad = [(o.kind, o.step, o.output) for o in outcomes if not o.good]
    assert not bad, fault_table.table(outcomes)
