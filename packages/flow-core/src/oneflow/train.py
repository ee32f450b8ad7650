"""``oneflow.train``; see `flow_core.api.session.train`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.train import CheckPoint, SimpleCheckPointManager

__all__ = ["CheckPoint", "SimpleCheckPointManager"]

_publish(globals())
