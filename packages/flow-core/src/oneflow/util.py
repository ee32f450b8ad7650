"""``oneflow.util``: `unique_str`; see `flow_core.api.session.job`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.job import unique_str

__all__ = ["unique_str"]

_publish(globals())
