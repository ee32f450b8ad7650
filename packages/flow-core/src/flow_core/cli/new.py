"""Create installable packages from templates: ``flow new``."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import flow_core
from flow_core.base.errors import PluginConflictError, PluginError

if TYPE_CHECKING:
    from flow_core.plugins.registry import Registry

TEMPLATES = Path(__file__).parent / "templates"
SUFFIX = ".tmpl"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of package."""

    table: str  # the registry's table of the records that such a package registers
    noun: str  # term for such a record in the package's description
    requires: tuple[str, ...] = ("flow-core", "numpy")  # distributions that such a package requires


KINDS = {
    "backend": Kind("devices", "device type"),
    "op": Kind("ops", "op"),
    "pass": Kind("passes", "pass", ("flow-core",)),
    "reader": Kind("readers", "record reader", ("flow-core", "flow-data", "numpy")),
    "format": Kind("formats", "checkpoint format"),
    "comm": Kind("comms", "comm"),
    "command": Kind("commands", "command", ("flow-core", "click")),
}
ALLOWED_NAME = "lower-case words of letters and digits, joined by hyphens, such as flow-cubes"
LONGEST_NAME = 30
"""Maximum length of a name, which keeps lines of the templates within 100 columns."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a new package.

    >>> Names.of("flow-double-negation")
    Names(distribution='flow-double-negation', module='flow_double_negation', \
record='double_negation')
    """

    distribution: str  # name of the package and of its plugin
    module: str  # name under which the package is imported
    record: str  # name of the op, device type or other record

    @classmethod
    def of(cls, name: str) -> Names:
        """Return the names that follow from the package's name."""
        return cls(name, name.replace("-", "_"), name.removeprefix("flow-").replace("-", "_"))

    def values(self, kind: Kind) -> dict[str, str]:
        """Return the values for the placeholders in templates."""
        from flow_core.plugins.hookspecs import API_VERSION

        major, minor, *_ = flow_core.__version__.split(".")
        bounds = f">={major}.{minor},<{int(major) + 1}"
        ends = {"click": ">=8", "numpy": ">=1.26"}
        return {
            "name": self.distribution,
            "module": self.module,
            "record": self.record,
            "command": self.record.replace("_", "-"),
            "title": "".join(word.capitalize() for word in self.record.split("_")),
            "api": ".".join(map(str, API_VERSION)),
            "bounds": bounds,
            "description": f"The {kind.noun} {self.record} for flow",
            "requires": ", ".join(f'"{name}{ends.get(name, bounds)}"' for name in kind.requires),
        }


def create_package(kind: str, name: str, parent: Path, registry: Registry) -> tuple[Path, ...]:
    """Create a package from the templates of a kind in a new folder ``parent/name``.

    Args:
        registry: the installed plugins, whose records must not have the new record's name.

    Returns:
        The paths of the files.

    Raises:
        PluginError: The name is not valid, or the folder exists.
        PluginConflictError: An installed package has the name of the module or of the record.
    """
    attempted = f"creating the {kind} package {name!r}"
    names = Names.of(name)
    _check_name(attempted, names)
    _check_free(attempted, names, KINDS[kind].table, registry)
    folder = parent / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        hint = "choose another name, or another folder with --dir"
        raise PluginError(attempted, found=error, allowed="a new folder", hint=hint) from error
    return tuple(_write(folder, kind, names))


def _check_name(attempted: str, names: Names) -> None:
    name = names.distribution
    valid = re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*", name)
    if valid is None or len(name) > LONGEST_NAME:
        raise PluginError(
            attempted, found=repr(name), allowed=f"{ALLOWED_NAME}; at most {LONGEST_NAME} letters"
        )
    for word in (names.module, names.record):
        if keyword.iskeyword(word) or keyword.issoftkeyword(word):
            raise PluginError(attempted, found=f"{word!r}, a Python keyword", allowed="other words")


def _check_free(attempted: str, names: Names, table: str, registry: Registry) -> None:
    hint = "choose another name"
    spec = find_spec(names.module)
    if spec is not None and spec.origin is not None:  # None: a folder without __init__.py
        found = f"the module {names.module!r} exists: {spec.origin}"
        raise PluginConflictError(attempted, found=found, allowed="a new module", hint=hint)
    owner = registry.origins.get((table, names.record))
    if owner is not None:
        found = f"{owner} registers {names.record!r} in {table}"
        raise PluginConflictError(attempted, found=found, allowed="a new name", hint=hint)


def _write(folder: Path, kind: str, names: Names) -> Iterator[Path]:
    """Fill in the templates of a kind; yield the paths of the files."""
    values, own = names.values(KINDS[kind]), TEMPLATES / kind
    pairs = [(own, path) for path in sorted(own.rglob(f"*{SUFFIX}"))]
    for base, template in ((TEMPLATES, TEMPLATES / f"pyproject.toml{SUFFIX}"), *pairs):
        inner = template.relative_to(base).with_suffix("")
        parts = (names.module if part == "module" else part for part in inner.parts)
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(template.read_text("utf-8")).substitute(values), "utf-8")
        yield path
