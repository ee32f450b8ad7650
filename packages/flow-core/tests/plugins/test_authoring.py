"""The public API for plugin authors: cheap to import, and sufficient for plugins and docs."""

from __future__ import annotations

import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path

import processes
import pytest

import flow_core.authoring

ROOT = Path(__file__).parents[4]
MODULES = [m.name for m in pkgutil.iter_modules(flow_core.authoring.__path__)]
PAGES = [*ROOT.glob("docs/plugins/*.md"), ROOT / "docs" / "architecture.md"]
EXAMPLES = [
    path
    for folder in ("packages", "toy_backend")
    for path in (ROOT / "tests" / "plugins" / folder).rglob("*.py")
]


def loaded_by(statement: str) -> set[str]:
    """Return the modules of flow_core loaded in a new process by a statement."""
    program = f"{statement}; import sys; print(*[m for m in sys.modules if 'flow_core' in m])"
    return {*processes.run([sys.executable, "-c", program], check=True).stdout.split()}


def test_every_object_is_exported_by_one_module() -> None:
    found: dict[tuple[str, int], str] = {}
    for name in MODULES:
        module = import_module(f"flow_core.authoring.{name}")
        for exported in {n for n in vars(module) if not n.startswith("_")}:
            first = found.setdefault((exported, id(getattr(module, exported))), name)
            assert first == name, f"{exported} is in {first} and {name}"


def test_specs_import_neither_ops_nor_passes() -> None:
    loaded = loaded_by("import flow_core.authoring.specs")
    assert not {m for m in loaded if re.match(r"flow_core\.(ops|passes|compiler|runtime)\b", m)}


def test_facade_does_not_import_the_authoring_api() -> None:
    assert not {m for m in loaded_by("import oneflow") if m.startswith("flow_core.authoring")}


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_docs_and_examples_import_public_modules_only(path: Path) -> None:
    found = re.findall(r"^\s*(?:from|import) flow_core\.(\w+)", path.read_text(), re.MULTILINE)
    assert {*found} <= {"authoring", "base", "testing"}
