"""Plugin entry point: the command ``flow serve``."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

FLOW_PLUGIN_API = "1.0"


def flow_register_commands(cli: Any) -> None:
    """Add the command ``flow serve``."""
    importlib.import_module("flow_serve.cli").add_commands(cli)


def flow_doctor() -> list[str]:
    """Return the version of the HTTP server."""
    return [f"uvicorn {version('uvicorn')}"]
