"""The ladder for the first minutes on a GPU, on a simulated device."""

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from cuda_simulator import host_compiler

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import cuda_checks  # noqa: E402 - found by the line above
import gpu_first  # noqa: E402
from cuda_order import Part, Row  # noqa: E402


@pytest.fixture(autouse=True)
def own_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ladder add folders to ``sys.path`` for one test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def rung(*rows: Row) -> Any:
    def run(call: Any) -> Iterator[Row]:
        yield from rows

    return run


def kept(file: Path) -> list[tuple[str, str]]:
    """Return the rows in a tar."""
    with tarfile.open(file) as made:
        member = made.extractfile(f"{file.stem}/rows.jsonl")
        assert member is not None
        rows = map(json.loads, member.read().splitlines())
        return [(row["name"], row["result"]) for row in rows]


def test_ladder_stops_at_the_rung_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rung is in the tar, also the failing one."""
    passed, failed = Row("first", "passed"), Row("second", "FAILED")
    rungs = {"one": rung(passed), "two": rung(failed, passed), "three": rung(passed)}
    monkeypatch.setattr(gpu_first, "RUNGS", rungs)
    monkeypatch.setattr(gpu_first, "NAMES", tuple(rungs))
    out = tmp_path / "out"
    assert gpu_first.main(["--out", str(out)]) == 1
    assert kept(tmp_path / "out.tar") == [
        ("first", "passed"), ("second", "FAILED"), ("first", "passed")
    ]  # fmt: skip
    assert "--from two" in capsys.readouterr().out
    assert gpu_first.main(["--out", str(out), "--from", "three"]) == 0
    assert gpu_first.main(["--out", str(out), "--from", "three", "--seconds", "0"]) == 1
    assert kept(tmp_path / "out.tar")[-1] == ("three", "not run")


def test_failing_families_run_again_synchronously(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(part: Part, call: Any) -> list[Row]:
        calls.append((part.name, call.env.get("FLOW_CUDA_SYNC"), call.prefix[:1]))
        return [Row(part.name, "passed" if part.name != "kernels:norm" else "FAILED")]

    monkeypatch.setattr(cuda_checks, "run", run)
    monkeypatch.setattr(gpu_first.shutil, "which", lambda name: f"/{name}")
    rows = list(gpu_first.families(cuda_checks.Call(tmp_path, {}, 0.0, True, False)))
    again = [call for call in calls if call[1]]
    assert again == [
        ("kernels:norm", "1", ()), ("kernels:norm", "1", ("/compute-sanitizer",))
    ]  # fmt: skip
    assert [row.name for row in rows if "," in row.name] == [
        "kernels:norm, synchronous", "kernels:norm, compute-sanitizer"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(processes.scaled(900))
@pytest.mark.skipif(host_compiler.compiler() is None, reason="no C++ compiler to simulate with")
def test_all_rungs_run_on_a_simulated_device(tmp_path: Path) -> None:
    from flow_core.frontend.session import session as sessions

    before = list(sessions._default)
    out = tmp_path / "out"
    try:
        words = ["--simulate", "--seconds", "800", "--out", str(out)]
        assert gpu_first.main(words) == 0, (out / "table.txt").read_text()
    finally:
        sessions._default[:] = before
    results = dict(kept(tmp_path / "out.tar"))
    assert set(results.values()) >= {"passed", "simulated"}
    for name in (
        "memory: copies", "capture: with forced collection", "numbers: conversions",
        "numbers: Philox", "products: float16", "cuDNN: as numpy", "lenet: training like the CPU's",
        "dropout: bits as on the CPU", "rows: kernels",
    ):  # fmt: skip
        assert results[name] == "passed"
