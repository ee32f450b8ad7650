"""The software and hardware that compilation depends on, as texts for digests of jobs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from flow_core.plugins.guards import result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.records import PluginRecord
from flow_core.plugins.registry import Registry

SOURCES = (".py", ".c", ".h", ".cu")
"""Suffixes of source files that may determine plans."""

FAST_PRODUCTS = "fast products on {}"
"""Name of the fact, for a device type, that names the 16-bit type whose products take at most half
of the time of float32 products."""

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


def fast_products(registry: Registry, device_types: Iterable[str]) -> str:
    """Return the 16-bit type whose products are fast on all device types; "" if there is none."""
    facts = {name.partition(": ")[2]: text for name, text in describe_machine(registry).items()}
    found = {facts.get(FAST_PRODUCTS.format(type_), "") for type_ in device_types}
    return found.pop() if len(found) == 1 else ""


def is_described(record: PluginRecord) -> bool:
    """Return whether a plugin that changes is described differently."""
    origin = record.origin
    package = origin.module.partition(".")[0]
    return record.state != "loaded" or bool(origin.version or (package and _source_stamp(package)))


@cache
def _source_stamp(package: str) -> str:
    """Return a digest of a package's sources; empty if the package is installed or has no files."""
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    if not folders and spec is not None and spec.has_location and spec.origin:
        folders = [Path(spec.origin)]  # a module of one file
    if not folders or any(INSTALLED & {*folder.parts} for folder in folders):
        return ""
    rows = sorted(row for folder in folders for row in _files(str(folder)))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _files(path: str, within: str = "") -> Iterator[str]:
    """Yield the path, size and time of each source file of a folder, or of a single file."""
    if os.path.isfile(path):
        status = os.stat(path)
        yield f"{os.path.basename(path)} {status.st_size} {status.st_mtime_ns}"
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(entry.path, f"{within}{entry.name}/")
            elif entry.name.endswith(SOURCES):
                status = entry.stat()
                yield f"{within}{entry.name} {status.st_size} {status.st_mtime_ns}"
