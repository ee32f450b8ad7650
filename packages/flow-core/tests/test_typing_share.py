"""Limit of untyped annotations in the core."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import flow_core

LIMIT = 0.05
"""The maximum fraction of parameters and results whose annotation contains ``Any``."""


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the annotations of all parameters and results of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = node.args
            given = (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg)
            found = (*(arg.annotation for arg in given if arg is not None), node.returns)
            yield from (annotation for annotation in found if annotation is not None)


def test_few_annotations_contain_any() -> None:
    folder = Path(flow_core.__file__).parent
    trees = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    found = [annotation for tree in trees for annotation in annotations(tree)]
    untyped = [
        annotation
        for annotation in found
        if any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))
    ]
    assert len(found) > 10_000
    assert len(untyped) / len(found) < LIMIT
