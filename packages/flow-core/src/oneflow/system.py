"""``oneflow.system``."""

from flow_core.api.assignment import system_assign as assign

__all__ = ["assign"]
