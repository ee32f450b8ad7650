"""``oneflow.system``: `assign`; see `flow_core.api.array.assignment`."""

from flow_core.api.array.assignment import system_assign as assign

__all__ = ["assign"]
