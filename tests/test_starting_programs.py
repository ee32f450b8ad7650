"""Tests start programs with `processes`, which lets no program outlive its test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BANNED = {"multiprocessing", "subprocess"}
HELPERS = ROOT / "tests" / "helpers"
EXCEPTIONS = {
    HELPERS / "processes.py": "it is what the others use",
    HELPERS / "fuzzing" / "harness.py": "a pool that measures the memory and time of each case",
}


def banned(source: str) -> Iterator[str]:
    """Yield the banned modules that a program imports, also inside of functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from BANNED & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from BANNED & {(node.module or "").partition(".")[0]}


def test_tests_start_programs_with_the_helper() -> None:
    patterns = ("packages/*/tests/**/*.py", "tests/**/*.py")
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert len(paths) > 300
    found = {path for path in paths if any(banned(path.read_text()))}
    assert sorted(found - {*EXCEPTIONS}) == [], "use tests/helpers/processes.py"
    assert {*EXCEPTIONS} <= found


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
