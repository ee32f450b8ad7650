"""Formats and decoders by the names under which plugins have registered them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flow_core.base.errors import DataError, nearest, user_line
from flow_core.plugins.host import default_registry


def format_of(name: str) -> str:
    """The lazy text of a registered format's class of files.

    Raises:
        DataError: nobody has registered it, or not by a text.
    """
    return _lazy_text("format", name, default_registry().readers, "flow_register_readers")


def decoder_of(name: str) -> str:
    """The lazy text of a registered decoder.

    Raises:
        DataError: nobody has registered it, or not by a text.
    """
    return _lazy_text("decoder", name, default_registry().decoders, "flow_register_decoders")


def _lazy_text(kind: str, name: str, known: Mapping[str, Any], hook: str) -> str:
    """What a plan keeps of a registered record: the text by which any process finds it."""
    if name not in known:
        raise DataError(
            f"looking for {kind} {name!r}",
            at=user_line(3),
            found=f"no plugin that has registered it with {hook}",
            allowed=", ".join(sorted(known)) or f"none: no plugin brings a {kind}",
            hint=nearest(str(name), known) or "flow doctor lists the plugins, and which failed",
        )
    text = known[name].load
    if not isinstance(text, str):
        raise DataError(
            f"use of {kind} {name!r}",
            at=user_line(3),
            found=f"{text!r:.60}",
            allowed='a text "package.module:attribute" as its load, which a plan can keep',
        )
    return text
