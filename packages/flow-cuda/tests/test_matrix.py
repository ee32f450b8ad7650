"""The page about versions of CUDA is written from the records of the sessions."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import cuda_matrix


def test_page_is_that_of_the_records() -> None:
    assert cuda_matrix.PAGE.read_text() == cuda_matrix.page()


def test_recorded_toolkits_are_those_of_the_sessions() -> None:
    rows = cuda_matrix.load()["compiled"]
    toolkits = cuda_matrix.sets()["toolkits"]
    assert rows[0]["toolkit"] == toolkits[0]
    assert {row["toolkit"] for row in rows} <= set(toolkits)
    assert {row["kernels"] for row in rows} == {rows[0]["kernels"]}
    assert list(cuda_matrix.sets()["ends"]) == [toolkits[0], toolkits[-1]]


def test_rows_are_replaced_and_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_matrix, "RECORD", tmp_path / "rows.json")
    for toolkit, seconds in (("13.0", 1), ("12.10", 2), ("12.9", 3), ("13.0", 4)):
        row = {"toolkit": toolkit, "python": "3.11", "seconds": seconds}
        cuda_matrix.record("compiled", ("toolkit", "python"), row)
    assert [r["seconds"] for r in cuda_matrix.load()["compiled"]] == [3, 2, 4]
