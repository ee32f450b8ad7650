"""Run OneFlow's own single-op tests on one GPU, with the runner of ``shared/conformance``."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cuda_order import Row
from cuda_rig import Run, verdict

NAME = "OneFlow's op tests"
FINE = ("passed", "skipped")
FEW = ("test_tril.py", "test_square_sum.py")
"""Test files that run in a simulator."""


def op_tests(run: Run) -> Iterator[Row]:
    """Run as many test files as the time allows; yield a row with their totals."""
    shared, tree = (os.environ.get(f"FLOW_CHECKS_{name}", "") for name in ("SHARED", "TREE"))
    runner = Path(shared) / "conformance" / "run.py"
    missing = list(_missing(runner, tree))
    if missing:
        yield Row(NAME, "skipped", "; ".join(missing))
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, str(runner), "--tree", tree, "--suite", "ops", "--device-nums", "1",
            "--jobs", str(max(1, (os.cpu_count() or 2) // 2)), "--timeout", "60",
        ]  # fmt: skip
        sources = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if run.simulated:
            sources.append(str(simulated_plugin(Path(scratch))))
            command += [word for name in FEW for word in ("--match", name)]
            command += ["--env", f"FLOW_DISABLE_PLUGINS={OTHERS}"]
        command += [word for path in filter(None, sources) for word in ("--pythonpath", path)]
        log = Path(scratch) / "log"
        whole = _ended(command, log, max(1.0, run.left() - 5))
        files, counts = totals(log.read_text(errors="replace"))
    words = ", ".join(f"{n} {word}" for word, n in counts.items())
    bad = sum(n for word, n in counts.items() if word not in FINE)
    cut = "" if whole else "; the time was over"
    yield Row(NAME, verdict(counts["passed"] and not bad), f"{words} in {files} files{cut}")


def _missing(runner: Path, tree: str) -> Iterator[str]:
    if not tree:
        yield "no --tree"
    if not runner.exists():
        yield f"no {runner}"
    if importlib.util.find_spec("tensorflow") is None:
        yield "tensorflow is not installed"


def _ended(command: list[str], log: Path, seconds: float) -> bool:
    """Run a command with its output in a file; return whether the command finished in time."""
    with log.open("w") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return False
    return True


def totals(text: str) -> tuple[int, Mapping[str, int]]:
    """Count files, and methods by outcome, in the runner's output, which has a line per file.

    >>> totals("test_add.py        d=1   2.0s  failed 1, passed 3")
    (1, Counter({'passed': 3, 'failed': 1}))
    """
    files, counts = 0, Counter[str]()
    for found in re.finditer(r"^\S+\.py +d=\d+ +[\d.]+s  (.*)$", text, re.MULTILINE):
        files += 1
        for word, number in re.findall(r"([\w-]+) (\d+)", found[1]):
            counts[word] += int(number)
    return files, counts


OTHERS = "flow-cuda,flow-onednn"
"""Plugins that a simulated device replaces, or with which it would compete."""


def simulated_plugin(folder: Path) -> Path:
    """Create a folder that registers the simulated device in processes that import from it."""
    info = folder / "site" / "flow_simulated-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flow-simulated\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[flow.plugins]\nsimulated = cuda_simulator.plugin\n")
    return info.parent
