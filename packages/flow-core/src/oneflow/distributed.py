"""``oneflow.distributed``: the processes of the program, as in OneFlow 0.4."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_session import get_rank, get_world_size

__all__ = ["get_rank", "get_world_size"]

_publish(globals())
