"""Look up file formats and decoders by the names under which plugins registered them."""

from __future__ import annotations

from flow_core.authoring.specs import load
from flow_core.base.errors import (
    DataError,
    FlowError,
    PluginError,
    described,
    located,
    nearest,
    user_line,
)
from flow_core.plugins.host import default_registry
from flow_data.records.record import Origin, corrupt


def find_format(name: str) -> str:
    """Return the lazy import string of a registered format.

    Raises:
        DataError: no plugin registered the name.
        PluginError: the import fails.
    """
    return _lazy_text("format", name, "readers")


def find_decoder(name: str) -> str:
    """Return the lazy import string of a registered decoder.

    Raises:
        DataError: no plugin registered the name.
        PluginError: the import fails.
    """
    return _lazy_text("decoder", name, "decoders")


def _lazy_text(kind: str, name: str, table: str) -> str:
    """Return the import string of a registration; plans store this string for other processes."""
    registry = default_registry()
    known = getattr(registry, table)
    if name not in known:
        raise DataError.at_caller(
            f"looking for {kind} {name!r}",
            found=f"no plugin that has registered it with flow_register_{table}",
            allowed=", ".join(sorted(known)) or f"none: no plugin provides a {kind}",
            hint=nearest(str(name), known) or "run flow doctor to see the plugins and their errors",
        )
    text: str = known[name].load
    with located(user_line(3)):
        load(text, f"{kind} {name!r}, {registry.origins[table, name]}")
    return text


BUGS = (AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)
"""Exceptions of readers and decoders that are mistakes of their code, not of files."""


def failure(
    error: Exception, origin: Origin, text: str, table: str, found: str, allowed: str
) -> FlowError:
    """Return the error for an exception of a reader or decoder.

    Args:
        text: the import string of the reader or decoder.
        table: "readers" or "decoders".
        found, allowed: descriptions of the record, if it is corrupt.
    """
    if not isinstance(error, BUGS):
        return corrupt(origin, found, allowed)
    registry = default_registry()
    names = [name for name, spec in getattr(registry, table).items() if spec.load == text]
    by, hint = repr(text), "fix it"
    if names:
        owner = registry.origins[table, names[0]]
        by, hint = f"{table[:-1]} {names[0]!r}, {owner}", owner.remedy
    return PluginError(f"reading {origin} by {by}", found=described(error), hint=hint)
