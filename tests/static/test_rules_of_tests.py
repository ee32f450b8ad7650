"""Tests start programs with `processes`, which ends them all, and do not measure time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {"multiprocessing", "subprocess"}
HELPERS = ROOT / "tests" / "helpers"
EXCEPTIONS = {
    HELPERS / "processes.py": "it is what the others use",
    HELPERS / "fuzzing" / "harness.py": "a pool that measures the memory and time of each case",
}
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
TIMED = {
    "packages/flow-core/tests/checkpoint/test_damage.py": "6 ms where a second is allowed",
    "packages/flow-core/tests/checkpoint/test_torch_files.py": "1 s where 30 are allowed",
    "packages/flow-dist/tests/recovery/test_restart_files.py": "0.2 s where at least 4 are allowed",
}
"""Tests that may limit the time of invalid input: quadratic work in C makes no more calls."""


def banned(source: str) -> Iterator[str]:
    """Yield the banned modules that a program imports, also inside of functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from BANNED & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from BANNED & {(node.module or "").partition(".")[0]}


def asserts_time(source: str) -> bool:
    """Return whether a program reads a clock in an assertion."""
    asserted = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert))
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in CLOCKS
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
        for statement in asserted
        for node in ast.walk(statement)
    )


def sources() -> dict[Path, str]:
    patterns = ("packages/*/tests/**/*.py", "tests/**/*.py")
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert len(paths) > 300
    return {path: path.read_text() for path in paths}


def test_tests_start_programs_with_the_helper() -> None:
    found = {path for path, source in sources().items() if any(banned(source))}
    assert sorted(found - {*EXCEPTIONS}) == [], "use tests/helpers/processes.py"
    assert {*EXCEPTIONS} <= found


def test_tests_count_work_in_place_of_seconds() -> None:
    found = {str(p.relative_to(ROOT)) for p, source in sources().items() if asserts_time(source)}
    assert found == {*TIMED}, "use tests/helpers/suite/work.py"


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "def f():\n    from multiprocessing.pool import Pool",
        "import os, subprocess",
    ],
)
def test_imports_are_found(source: str) -> None:
    assert [*banned(source)]


def test_clocks_in_assertions_are_found() -> None:
    assert asserts_time("import time\ndef f(begun):\n    assert time.process_time() - begun < 2")
    assert not asserts_time("import time\nwhile time.monotonic() < 2:\n    assert True")
