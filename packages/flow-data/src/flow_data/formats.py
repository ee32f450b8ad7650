"""Look up file formats and decoders by the names under which plugins registered them."""

from __future__ import annotations

from flow_core.authoring.specs import load
from flow_core.base.errors import DataError, located, nearest, user_line
from flow_core.plugins.host import default_registry


def find_format(name: str) -> str:
    """Return the lazy import string of a registered format.

    Raises:
        DataError: no plugin registered the name, or the registration has no import string.
        PluginError: the import fails.
    """
    return _lazy_text("format", name, "readers")


def find_decoder(name: str) -> str:
    """Return the lazy import string of a registered decoder.

    Raises:
        DataError: no plugin registered the name, or the registration has no import string.
        PluginError: the import fails.
    """
    return _lazy_text("decoder", name, "decoders")


def _lazy_text(kind: str, name: str, table: str) -> str:
    """Return the import string of a registration; plans store this string for other processes."""
    registry = default_registry()
    known = getattr(registry, table)
    if name not in known:
        raise DataError(
            f"looking for {kind} {name!r}",
            at=user_line(3),
            found=f"no plugin that has registered it with flow_register_{table}",
            allowed=", ".join(sorted(known)) or f"none: no plugin provides a {kind}",
            hint=nearest(str(name), known) or "run flow doctor to see the plugins and their errors",
        )
    text = known[name].load
    if not isinstance(text, str):
        raise DataError(
            f"use of {kind} {name!r}",
            at=user_line(3),
            found=f"{text!r:.60}",
            allowed='an import string "package.module:attribute" as its load',
        )
    with located(user_line(3)):
        load(text, f"{kind} {name!r}, {registry.origins[table, name]}")
    return text
