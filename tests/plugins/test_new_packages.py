"""Packages that ``flow new`` creates pass their own tests and the linter, as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import processes
import pytest
from click.testing import CliRunner

from flow_core.cli.app import cli
from flow_core.cli.new import KINDS, LONGEST_NAME, create_package
from flow_core.plugins.host import load_plugins

Site = Any
RUFF = Path(sys.executable).with_name("ruff")


@pytest.fixture(params=sorted(KINDS))
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A new package of each kind, with names of several words."""
    name = f"flow-my-new-{request.param}"
    done = CliRunner().invoke(cli, ["new", request.param, name, "--dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / name
    assert str(folder / "pyproject.toml") in done.stdout
    return folder


@pytest.mark.slow
def test_it_passes_its_tests(package: Path, site: Site) -> None:
    site.install_editable(package)
    settings = {"FLOW_PLUGINS": None, "FLOW_DISABLE_PLUGINS": "flow-onednn", "OMP_NUM_THREADS": "1"}
    done = site.run("-m", "pytest", "-q", "-W", "error", cwd=package, **settings)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["flow-a", "w" * LONGEST_NAME])
def test_it_is_formatted_and_has_no_lint(kind: str, name: str, tmp_path: Path) -> None:
    create_package(kind, name, tmp_path, load_plugins())
    for command in (("check", "--no-cache"), ("format", "--diff", "--no-cache")):
        processes.run([RUFF, *command, tmp_path], check=True)


def test_its_readme_lists_its_files(package: Path) -> None:
    readme = (package / "README.md").read_text()
    listed = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    found = {str(p.relative_to(package)) for p in package.rglob("*.py")}
    assert listed <= found
    assert not [name for name in found - listed if not name.startswith("tests/")]
