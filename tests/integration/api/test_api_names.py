"""Every public name of OneFlow 0.3.4 is there, and takes its arguments as there."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

LISTING = Path(__file__).parents[4] / "shared" / "api" / "oneflow-0.3.4-signatures.json"

pytestmark = pytest.mark.skipif(not LISTING.exists(), reason="needs the listing in ../shared")

WIDER = {
    "oneflow.train.CheckPoint": "checks its arguments itself",
    **dict.fromkeys(
        ("oneflow.scope.consistent_view", "oneflow.scope.mirrored_view"), "functions, not classes"
    ),
}
"""Signatures that differ, and why."""


def listed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(LISTING.read_text())
    return dict(found.get("names", found))


def resolved(name: str) -> Any:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def taken(signature: str) -> tuple[list[str], list[str]]:
    """Names of parameters by position, but for ``self``, and of those with a default."""
    function = ast.parse(f"def f{signature}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [a.arg for a in function.args.args]
    with_default = names[len(names) - len(function.args.defaults) :]
    return [n for n in names if n != "self"], with_default


def test_every_name_is_there_and_takes_its_arguments() -> None:
    wrong = []
    for name, entry in listed().items():
        if not isinstance(entry, dict):
            continue
        found, (want, defaults) = resolved(name), taken(entry["signature"])
        if not want or name in WIDER:
            continue
        parameters = inspect.signature(found).parameters.values()
        own = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        fits = [p.name for p in own[: len(want)]] == want
        optional = all(p.default is not p.empty for p in own if p.name not in want[: len(want)])
        kept = all(p.default is not p.empty for p in own if p.name in defaults)
        if not (fits and optional and kept):
            wrong.append(f"{name}{entry['signature']}: {inspect.signature(found)}")
    assert not wrong, "\n".join(wrong)
