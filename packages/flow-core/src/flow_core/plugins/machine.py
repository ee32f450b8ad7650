"""The software and hardware that compilation depends on, as texts for digests of jobs."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from flow_core.plugins.guards import result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.registry import Registry

SOURCES = (".py", ".c", ".h", ".cu")
"""Suffixes of source files that may determine plans."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders of installed packages, whose files do not change within a version."""


def describe_machine(registry: Registry) -> dict[str, str]:
    """Return what plans depend on besides their jobs: versions, libraries and processors, by name.

    Packages under development, outside of site-packages, are described by the sizes and times of
    their source files.

    Raises:
        PluginResultError: a plugin's hook does not return a mapping of texts.
    """
    version = ".".join(platform.python_version_tuple()[:2])
    found = {"python": f"{platform.python_implementation()} {version} {sys.platform}"}
    for record in registry.plugins:
        if record.state == "loaded":
            found[f"plugin {record.origin.plugin}"] = (
                f"{record.origin.distribution} {record.origin.version}"
            )
            package = record.origin.module.partition(".")[0]
            if package and (stamp := _source_stamp(package)):
                found[f"sources of {package}"] = stamp
    for entry in registry.calls["flow_describe_machine"]:
        facts = entry.call()
        if not isinstance(facts, Mapping) or not all(
            isinstance(text, str) for row in facts.items() for text in row
        ):
            what = f"hook flow_describe_machine of {entry.origin}"
            raise result_error(what, entry.origin, show(facts), "a mapping of texts to texts")
        found |= {f"{entry.origin.plugin}: {name}": text for name, text in facts.items()}
    return found


@cache
def _source_stamp(package: str) -> str:
    """Return a digest of a package's sources; empty if the package is installed or has no files."""
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    if not folders or any(INSTALLED & {*folder.parts} for folder in folders):
        return ""
    rows = sorted(row for folder in folders for row in _files(folder))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.suffix in SOURCES:
            stat = path.stat()
            yield f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}"
