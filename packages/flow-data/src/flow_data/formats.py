"""Look up file formats and decoders by the names under which plugins registered them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flow_core.base.errors import DataError, nearest, user_line
from flow_core.plugins.host import default_registry


def find_format(name: str) -> str:
    """Return the lazy import string of a registered format.

    Raises:
        DataError: no plugin registered it, or not by an import string.
    """
    return _lazy_text("format", name, default_registry().readers, "flow_register_readers")


def find_decoder(name: str) -> str:
    """Return the lazy import string of a registered decoder.

    Raises:
        DataError: no plugin registered it, or not by an import string.
    """
    return _lazy_text("decoder", name, default_registry().decoders, "flow_register_decoders")


def _lazy_text(kind: str, name: str, known: Mapping[str, Any], hook: str) -> str:
    """Return the import string of a registration, which plans store for other processes."""
    if name not in known:
        raise DataError(
            f"looking for {kind} {name!r}",
            at=user_line(3),
            found=f"no plugin that has registered it with {hook}",
            allowed=", ".join(sorted(known)) or f"none: no plugin provides a {kind}",
            hint=nearest(str(name), known) or "flow doctor lists the plugins, and which failed",
        )
    text = known[name].load
    if not isinstance(text, str):
        raise DataError(
            f"use of {kind} {name!r}",
            at=user_line(3),
            found=f"{text!r:.60}",
            allowed='an import string "package.module:attribute" as its load',
        )
    return text
