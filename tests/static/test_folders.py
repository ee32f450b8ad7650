"""Folders, modules and functions stay small enough to survey."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 20
"""Modules in one folder, without ``__init__``."""
EXCEPTIONS = {"packages/flow-core/src/oneflow": "each module is a public namespace of OneFlow"}
PATTERNS = ("packages/*/src/**/*.py", "packages/*/tests/**/*.py", "tests/**/*.py")


def modules() -> Counter[str]:
    """Count the modules of each folder of sources and tests."""
    paths = (path for pattern in PATTERNS for path in ROOT.glob(pattern))
    return Counter(str(p.parent.relative_to(ROOT)) for p in paths if p.name != "__init__.py")


def test_no_folder_has_too_many_modules() -> None:
    found = modules()
    assert len(found) > 100
    large = {folder: count for folder, count in found.items() if count > MOST}
    assert set(large) == set(EXCEPTIONS), large


def test_modules_and_functions_have_at_most_600_and_60_lines() -> None:
    """Docstrings do not count for functions."""
    paths = [ROOT / "noxfile.py", *ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("tests/**/*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    long = [
        f"{path}: {text.count(chr(10))}" for path, text in texts.items() if text.count("\n") > 600
    ]
    long += [
        f"{path}:{node.lineno}: {node.name}: {_code_lines(node)}"
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _code_lines(node) > 60
    ]
    assert long == []


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    documented = ast.get_docstring(function) is not None
    first = function.body[1 if documented and len(function.body) > 1 else 0].lineno
    return (function.end_lineno or 0) - first + 1


@pytest.mark.parametrize("folder", EXCEPTIONS)
def test_exceptions_state_their_reason(folder: str) -> None:
    text = " ".join((ROOT / folder / "__init__.py").read_text().split())
    assert EXCEPTIONS[folder].lower() in text.lower()


def test_wheels_contain_no_helpers_of_tests() -> None:
    """Sources, which are packed into wheels, import nothing of the tests."""
    helpers = {
        path.stem
        for folder in (ROOT / "tests/helpers", *ROOT.glob("packages/*/tests/helpers"))
        for path in folder.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {"cuda_simulator", "processes"} <= helpers
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in ROOT.glob("packages/*/src/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _modules(node)
        if name.partition(".")[0] in helpers
    ]
    assert found == []


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level else [str(node.module)]
