"""The script for real GPUs: it survives its parts, and all of them run on a rehearsed device."""

import inspect
import json
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flow_cuda import host_compiler

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import cuda_checks  # noqa: E402 - found by the line above
import cuda_parts  # noqa: E402 - found by the line above

CHILD = """
import os, sys, time
name, rows = sys.argv[1], sys.argv[3]
with open(rows, "a") as file:
    file.write('{"name": "%s", "result": "passed", "note": "", "data": {}}\\n' % name)
    file.flush()
    if name == "hangs":
        file.write('{"name": "half a ro')
        file.flush()
        time.sleep(60)
    if name == "crashes":
        print("what was wrong")
        os._exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parts that pass, hang and crash, in the place of the real ones."""
    (tmp_path / "cuda_parts.py").write_text(CHILD)
    monkeypatch.setattr(cuda_checks, "HERE", tmp_path)
    parts = [cuda_checks.Part(name, seconds=6) for name in ("passes", "hangs", "crashes", "last")]
    monkeypatch.setattr(cuda_checks, "PARTS", tuple(parts))
    monkeypatch.setattr(cuda_checks, "NETWORKS", ())
    return tmp_path


def test_a_part_that_fails_takes_nothing_with_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cuda_checks.main(["--out", str(folder / "out")]) == 1
    lines = (folder / "out" / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["name"], row["result"]) for row in rows] == [
        ("passes", "passed"), ("hangs", "passed"), ("hangs", "FAILED"),
        ("crashes", "passed"), ("crashes", "FAILED"), ("last", "passed"),
    ]  # fmt: skip
    assert rows[2]["note"] == "cut off after 6 s"
    assert rows[4]["note"] == "status 3; what was wrong"
    table = (folder / "out" / "table.txt").read_text()
    assert len(table.splitlines()) == len(rows)
    assert capsys.readouterr().out.endswith("2 failed: hangs, crashes\n")


def test_parts_are_skipped_when_the_time_is_over(folder: Path) -> None:
    started = time.monotonic()
    assert cuda_checks.main(["--out", str(folder / "out"), "--seconds", "0"]) == 0
    assert time.monotonic() - started < 5
    lines = (folder / "out" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["result"] for line in lines] == ["skipped"] * 4


def test_all_parts_are_there() -> None:
    for part in cuda_checks.PARTS:
        name, *words = part.name.split(":")
        inspect.signature(cuda_parts.CHECKS[name]).bind(None, *words)
    asked = {part.name.split(":")[0] for part in cuda_checks.PARTS}
    assert asked == set(cuda_parts.CHECKS)


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


def test_networks_are_compared_with_the_best_peer() -> None:
    def row(name: str, **data: float) -> Any:
        return cuda_checks.Row(name, "", "", data)

    rows = [
        row("rate: bytes", bytes=1e12),
        row("rate: operations 16", **{"operations 16": 1e14}),
        row("mlp: step", seconds=1e-3, bytes=1e8, operations=2e10, bits=16),
        row("mlp: torch eager", seconds=3e-3), row("mlp: jax jit", seconds=2e-3),
        row("lenet: step", seconds=1e-3, bytes=1e8, operations=2e10, bits=16),
    ]  # fmt: skip
    mlp, lenet = cuda_checks.comparison(rows)
    assert mlp.result == "2.00 x"
    assert "own 1000, torch eager 3000, jax jit 2000, floor 100 of bytes, 200 of work" in mlp.note
    assert lenet.result == "no peer"


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(host_compiler.compiler() is None, reason="no C++ compiler to rehearse with")
def test_every_part_runs_on_a_rehearsed_device(tmp_path: Path) -> None:
    """Also where there is no network; peers as far as they are installed."""
    command = [sys.executable, str(BENCHMARKS / "cuda_checks.py"), "--rehearse"]
    done = subprocess.run(
        [*command, "--seconds", "2000", "--out", str(tmp_path / "out")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing failed\n")
    results = {}
    for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        results[row["name"]] = row["result"]
    assert results["dropout: bits as on the CPU"] == "passed"
    assert results["mlp: arena as predicted"] == "passed"
    assert results["NCCL: one device"] == "passed"
    for name in cuda_checks.NETWORKS:
        assert results[f"{name}: step"].endswith("us")
    families = [part.name.split(":")[1] for part in cuda_checks.PARTS if "kernels:" in part.name]
    assert {results[f"{family}: kernels"] for family in families} == {"passed"}
