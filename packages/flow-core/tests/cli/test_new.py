"""Names of new packages, and what `create_package` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from flow_core.base.errors import PluginConflictError, PluginError
from flow_core.cli.new import KINDS, create_package
from flow_core.plugins.host import load_plugins


@pytest.mark.parametrize(
    "name",
    ["", "Cubes", "flow_cubes", "-cubes", "cubes-", "flow--cubes", "3d", "../cubes", "a/b",
     "würfel", "flow-lambda", "flow-match", "class", "x" * 31],
)  # fmt: skip
def test_wrong_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="creating the op package"):
        create_package("op", name, tmp_path, load_plugins())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "name", "owner"),
    [
        ("op", "flow-relu", "registers 'relu' in ops"),
        ("pass", "flow-dead-code", "registers 'dead_code' in passes"),
        ("backend", "flow-cpu", "registers 'cpu' in devices"),
        ("op", "flow-core", "the module 'flow_core' exists"),
        ("op", "json", "the module 'json' exists"),
    ],
)
def test_taken_names_are_refused(kind: str, name: str, owner: str, tmp_path: Path) -> None:
    with pytest.raises(PluginConflictError, match=owner):
        create_package(kind, name, tmp_path, load_plugins())
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    existing = tmp_path / "flow-cubes"
    existing.mkdir()
    with pytest.raises(PluginError, match="a new folder"):
        create_package("op", "flow-cubes", tmp_path, load_plugins())
    assert not list(existing.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_all_placeholders_are_filled(kind: str, tmp_path: Path) -> None:
    for path in create_package(kind, "flow-cubes", tmp_path / "deep" / "er", load_plugins()):
        text = path.read_text()
        assert "tmpl" not in path.name
        assert "$" not in text.replace("$ ", ""), path
