"""Installs the tiny packages of this folder and runs programs beside them."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import processes
import pytest
from suite import preloaded

PACKAGES = Path(__file__).parent / "packages"


class Site:
    """A folder of installed packages, and programs that see it."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.folder = folder
        self.interpreter = interpreter
        self.plugins: list[str] = []
        self.sources: list[str] = []

    def install(self, *names: str) -> Site:
        """Puts packages and their metadata where a program finds them."""
        for name in names:
            package = PACKAGES / name
            project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
            shutil.copytree(package, self.folder, dirs_exist_ok=True)
            points = project.get("entry-points", {}).get("flow.plugins", {})
            self.write_metadata(project["name"], project["version"], points, _modules(package))
            self.plugins += points
        return self

    def install_editable(self, package: Path) -> Site:
        """Puts a package with a folder src where a program finds it."""
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        points = project["entry-points"]["flow.plugins"]
        self.write_metadata(project["name"], project["version"], points, ())
        self.sources.append(str(package / "src"))
        self.plugins += points
        return self

    def write_metadata(
        self, name: str, version: str, points: dict[str, str], files: Sequence[str]
    ) -> None:
        """A minimal dist-info folder."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(header)
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        lines = [f"{key} = {value}" for key, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[flow.plugins]", *lines]) + "\n")

    def run(
        self, *arguments: str, cwd: Path | None = None, **settings: str | None
    ) -> processes.Completed[str]:
        """Runs Python beside the packages.

        Only these plugins are allowed, unless ``FLOW_PLUGINS=None`` takes the setting away.
        """
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "ONEF"))}
        path = [str(self.folder), *self.sources, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        chosen = {"FLOW_PLUGINS": ",".join(self.plugins), **settings}
        environment |= {key: value for key, value in chosen.items() if value is not None}
        command = preloaded.command(self.interpreter, *arguments)
        return processes.run(command, cwd=cwd, env=environment)

    def python(self, code: str, **settings: str | None) -> str:
        """What a program prints that sees a `registry`; it must end well."""
        done = self.run("-c", REGISTRY + code, **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, code: str = "", **settings: str | None) -> str:
        """The error with which such a program ends."""
        done = self.run("-c", REGISTRY + code, **settings)
        assert done.returncode == 1, done.stdout
        return done.stderr

    def flow(self, *arguments: str, **settings: str | None) -> processes.Completed[str]:
        """Runs the ``flow`` command."""
        return self.run("-m", "flow_core.cli", *arguments, **settings)


REGISTRY = "from flow_core.plugins.host import load_plugins\nregistry = load_plugins()\n"


def _modules(package: Path) -> list[str]:
    return [str(path.relative_to(package)) for path in sorted(package.rglob("*.py"))]


@pytest.fixture
def site(tmp_path: Path, interpreter: str) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder, interpreter)
