"""Limits of untyped annotations per package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2]
LIMITS = {
    "flow-core": 0.05,
    "flow-cuda": 0.08,
    "flow-data": 0.09,
    "flow-dist": 0.08,
    "flow-onednn": 0.08,
    "flow-onnx": 0.08,
}
"""The maximum fraction of parameters and results whose annotation contains ``Any``."""


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the annotations of all parameters and results of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = node.args
            given = (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg)
            found = (*(arg.annotation for arg in given if arg is not None), node.returns)
            yield from (annotation for annotation in found if annotation is not None)


@pytest.mark.slow
@pytest.mark.parametrize("package", LIMITS)
def test_few_annotations_contain_any(package: str) -> None:
    sources = [path.read_text() for path in (PACKAGES / package / "src").rglob("*.py")]
    found = [annotation for source in sources for annotation in annotations(ast.parse(source))]
    untyped = [
        annotation
        for annotation in found
        if any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))
    ]
    assert len(found) > 500
    assert len(untyped) / len(found) < LIMITS[package]


def test_every_large_package_has_a_limit() -> None:
    small = {"flow-fit", "flow-rules", "flow-serve", "flow-typing", "flow-zoo"}
    assert {path.name for path in PACKAGES.iterdir()} == {*LIMITS, *small}
