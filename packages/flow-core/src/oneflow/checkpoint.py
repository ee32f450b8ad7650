"""``oneflow.checkpoint``; see `flow_core.api.session.train` and `flow_core.api.session.export`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.export import export
from flow_core.api.session.train import get, save

__all__ = ["export", "get", "save"]

_publish(globals())
