"""Package metadata, and the files that a hosting service or an editor reads."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))


def project(path: Path) -> dict[str, Any]:
    return dict(tomllib.loads(path.read_text())["project"])


def supported() -> list[str]:
    """The Python versions that nox tests."""
    (found,) = re.findall(r"^SUPPORTED = (.*)$", (ROOT / "noxfile.py").read_text(), re.M)
    return re.findall(r"3\.\d+", found)


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_package_metadata(path: Path) -> None:
    found = project(path)
    assert found["authors"] == [{"name": "The flow maintainers"}]
    assert found["keywords"] == sorted(found["keywords"])
    assert found["classifiers"] == sorted(found["classifiers"])
    versions = [c.rpartition(" ")[2] for c in found["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert versions == supported()
    assert found["requires-python"] == f">={supported()[0]}"
    assert any(c.startswith("Operating System ::") for c in found["classifiers"])


def test_workflows_use_the_supported_versions() -> None:
    """A macOS, Windows or ARM runner tests the oldest and the newest one."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    oldest, *_, newest = supported()
    assert f'python: ["{oldest}", "{newest}"]' in text
    (block,) = re.findall(r"python-version: \|\n((?: +3\.\d+\n)+)", text)
    assert sorted(block.split()) == supported()


def test_citation_names_the_version_of_the_core() -> None:
    (version,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    source = (ROOT / "packages/flow-core/src/flow_core/__init__.py").read_text()
    assert f'__version__ = "{version}"' in source


def test_the_development_container_runs_the_contributor_s_commands() -> None:
    """Its first command is the one of CONTRIBUTING.md."""
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    page = (ROOT / "CONTRIBUTING.md").read_text()
    for command in settings["postCreateCommand"].split(" && "):
        assert command in page


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_of_project_files_resolve(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert all((ROOT / link).exists() for link in links), links
