"""The script for real GPUs: it survives its parts, and all of them run on a simulated device."""

import inspect
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import processes
import pytest
from cuda_simulator import host_compiler

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import cuda_checks  # noqa: E402 - found by the line above
import cuda_order  # noqa: E402
import cuda_parts  # noqa: E402
import cuda_table  # noqa: E402
import cuda_tests  # noqa: E402

CHILD = """
import os, sys, time
name, rows = sys.argv[1], sys.argv[3]
with open(rows, "a") as file:
    file.write('{"name": "%s", "result": "passed", "note": "", "data": {}}\\n' % name)
    file.flush()
    if name == "hangs":
        file.write('{"name": "half a ro')
        file.flush()
        time.sleep(1e4)
    if name == "crashes":
        print("what was wrong")
        os._exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parts that pass, hang and crash, in the place of the real ones."""
    (tmp_path / "cuda_parts.py").write_text(CHILD)
    monkeypatch.setattr(cuda_checks, "HERE", tmp_path)
    limits = dict.fromkeys(("passes", "hangs", "crashes", "last"), processes.scaled(6.0))
    parts = [cuda_order.Part(*limit) for limit in (limits | {"hangs": 6.0}).items()]
    monkeypatch.setattr(cuda_order, "PARTS", tuple(parts))
    monkeypatch.setattr(cuda_order, "COMPILED", (cuda_order.Part("compiled", 6.0),))
    return tmp_path


def rows_of(folder: Path) -> list[tuple[str, str]]:
    rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    return [(row["name"], row["result"]) for row in rows]


@pytest.mark.slow
def test_a_part_that_fails_takes_nothing_with_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "out"
    assert cuda_checks.main(["--out", str(out)]) == 1
    assert rows_of(out) == [
        ("passes", "passed"), ("hangs", "passed"), ("hangs", "FAILED"),
        ("crashes", "passed"), ("crashes", "FAILED"), ("last", "passed"),
    ]  # fmt: skip
    table = (out / "table.txt").read_text()
    assert "cut off after 6 s" in table
    assert "status 3; what was wrong" in table
    assert len(table.splitlines()) == 4
    assert capsys.readouterr().out.endswith("2 failed: hangs, crashes\n")


def test_parts_that_do_not_fit_are_named_and_may_be_run_later(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(folder / "out")
    assert cuda_checks.main(["--out", out, "--seconds", "5.5"]) == 0
    assert {result for _, result in rows_of(folder / "out")} == {"not run"}
    text = capsys.readouterr().out
    assert f"--out {out} --only passes hangs crashes last\n" in text
    assert cuda_checks.main(["--out", out, "--only", "pa", "la"]) == 0
    assert cuda_checks.main(["--out", out, "--compiled"]) == 0
    table = (folder / "out" / "table.txt").read_text().splitlines()
    assert [row.split()[:2] for row in table] == [
        ["passes", "passed"], ["last", "passed"], ["compiled", "passed"]
    ]  # fmt: skip


def test_what_matters_most_fits_into_the_time_by_the_slices() -> None:
    seconds, group, sure = 0.0, [0.0], True
    for part, following in zip(
        cuda_order.PARTS, (*cuda_order.PARTS[1:], cuda_order.Part("", 0)), strict=True
    ):
        if sure:
            group.append(part.seconds)
        sure = sure and part.name != cuda_order.LAST_SURE
        if not part.together or part.together != following.together or not sure:
            rounds = -(-(len(group) - 1) // (cuda_order.WORKERS if part.together else 1))
            seconds, group = seconds + rounds * max(group), [0.0]
    assert 400 < seconds <= 540


def test_all_parts_are_there() -> None:
    parts = (*cuda_order.PARTS, *cuda_order.COMPILED)
    for part in parts:
        name, *words = part.name.split(":")
        inspect.signature(cuda_parts.CHECKS[name]).bind(None, *words)
    assert {part.name.split(":")[0] for part in parts} == set(cuda_parts.CHECKS) - {"kernels"}
    assert len({part.name for part in parts}) == len(parts)
    asked = {part.name for part in parts}
    for network in cuda_order.NETWORKS:
        assert {f"peer:{network}:{peer}" for peer in cuda_order.PEERS} <= asked


def test_packages_of_the_checkout_are_known_where_they_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(cuda_checks.metadata, "version", nothing)
        sources = list(cuda_checks.place_packages(tmp_path))
    assert all(source.is_dir() for source in sources)
    found = {d.name: d for d in metadata.distributions(path=[str(tmp_path)])}
    assert set(found) == {source.parent.name for source in sources}
    (plugin,) = found["flow-cuda"].entry_points
    assert (plugin.group, plugin.value) == ("flow.plugins", "flow_cuda.plugin")
    assert found["flow-core"].version == metadata.version("flow-core")


def table_of(*rows: Any) -> dict[str, Any]:
    return {row.name: row for row in rows}


def row(name: str, **data: float) -> Any:
    return cuda_order.Row(name, "", "", data)


def test_networks_are_compared_with_the_best_peer() -> None:
    rows = table_of(
        row("rate: bytes", bytes=1e12),
        row("rate: operations 16", **{"operations 16": 1e14}),
        row("mlp: step", seconds=1e-3, bytes=1e8, operations=2e10, bits=16),
        row("mlp: torch eager", seconds=3e-3), row("mlp: jax jit", seconds=2e-3),
        row("lenet: step", seconds=1e-3, bytes=1e8, operations=2e10, bits=16),
    )  # fmt: skip
    mlp, lenet = cuda_table.comparison(rows)
    assert mlp.result == "2.00 x"
    assert "own 1000, torch eager 3000, jax jit 2000, floor 100 of bytes, 200 of work" in mlp.note
    assert lenet.result == "no peer"


@pytest.mark.parametrize(("percent", "result"), [(98.2, "passed"), (91.0, "FAILED")])
def test_accuracies_are_compared(percent: float, result: str) -> None:
    gpu = row(cuda_table.ACCURACY.format("gpu"), percent=percent)
    assert not list(cuda_table.accuracies(table_of(gpu)))
    both = table_of(gpu, row(cuda_table.ACCURACY.format("cpu"), percent=98.0))
    (found,) = cuda_table.accuracies(both)
    assert found.result == result


def test_outcomes_of_tests_are_counted_file_by_file() -> None:
    text = """suite ops: 2 test files, 9 methods (static), device passes [1]
test_add.py                                          d=1   2.0s  failed 1, passed 3
test_tril.py                                         d=1  12.5s  import-failed 2, skipped 1
test_half_a_li"""
    assert cuda_tests.totals(text) == (
        2, {"failed": 1, "passed": 3, "import-failed": 2, "skipped": 1}
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.timeout(processes.scaled(2400))
@pytest.mark.skipif(host_compiler.compiler() is None, reason="no C++ compiler to simulate with")
def test_every_part_runs_on_a_simulated_device(tmp_path: Path) -> None:
    """Also where there is no network; peers as far as they are installed."""
    command = [sys.executable, str(BENCHMARKS / "cuda_checks.py"), "--simulate"]
    command += ["--seconds", "2000", "--out", str(tmp_path / "out")]
    done = processes.run(command, cwd=tmp_path, timeout=2400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing failed\n")
    results = {}
    for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        results[row["name"]] = row["result"]
    assert int(results["resnet50: launches"]) > 20
    assert results["mlp: arena as predicted"] == "passed"
    assert results["NCCL: one device"] == "passed"
    for name in cuda_order.NETWORKS:
        assert results[f"{name}: step"].endswith("us")
        assert results[f"{name}: arena as predicted"] == "passed"
