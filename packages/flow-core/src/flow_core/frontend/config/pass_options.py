"""The options of registered passes, which settings of jobs with the names of passes set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flow_core.passes.options import options_of
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import load


def options_of_pass(name: str) -> Mapping[str, Any] | None:
    """Return the defaults of the options that a pass has besides those that other settings set.

    Returns:
        The defaults by name of the option; None if no plugin registers a pass of that name, or if
        only settings request it.
    """
    spec = next((spec for spec in default_registry().passes if spec.name == name), None)
    if spec is None or not spec.default:
        return None
    item = load(spec.load)()
    return {row.name: getattr(item, row.name) for row in options_of(item) if not row.setting}
