"""``oneflow.deprecated``: older names that still work."""

from flow_core.api.scope import namespace as variable_scope

__all__ = ["variable_scope"]
