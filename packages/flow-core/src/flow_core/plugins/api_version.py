"""Check the version of the plugin API that a plugin needs."""

from __future__ import annotations

import re

import flow_core
from flow_core.base.errors import PluginError
from flow_core.plugins.hookspecs import API_VERSION
from flow_core.plugins.records import Origin


def checked_api(origin: Origin, declared: object) -> str:
    """Return a plugin's ``FLOW_PLUGIN_API``, the lowest version of the plugin API that it needs.

    Raises:
        PluginError: the version is missing or malformed, or has another major version or a newer
            minor version.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)", declared) if isinstance(declared, str) else None
    needed = (int(match[1]), int(match[2])) if match else None
    if match and needed and needed[0] == API_VERSION[0] and needed <= API_VERSION:
        return match[0]
    own = ".".join(map(str, API_VERSION))
    lowest = f"{API_VERSION[0]}.0"
    update = "flow-core" if needed and needed > API_VERSION else origin.distribution
    raise PluginError(
        f"checking the plugin API of {origin}",
        found="no FLOW_PLUGIN_API" if declared is None else f"FLOW_PLUGIN_API = {declared!r}",
        allowed=f"{lowest}{f' to {own}' if own != lowest else ''}: "
        f"flow-core {flow_core.__version__} has plugin API {own}",
        hint=f"uv pip install --upgrade {update}" if update else f'FLOW_PLUGIN_API = "{own}"',
    )
