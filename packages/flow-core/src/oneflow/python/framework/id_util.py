"""``oneflow.python.framework.id_util``: unique names for ops."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.job import unique_str as UniqueStr

__all__ = ["UniqueStr"]

_publish(globals())
