"""``oneflow.system``: `assign`; see `flow_core.api.array.assignment`."""

from flow_core.api.array.assignment import system_assign as assign
from flow_core.api.calls.published import publish as _publish

__all__ = ["assign"]

_publish(globals())
