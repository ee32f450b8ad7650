"""``oneflow.saved_model``; see `flow_core.api.serving.builders`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.serving.builders import GraphBuilder, ModelBuilder, SignatureBuilder

__all__ = ["GraphBuilder", "ModelBuilder", "SignatureBuilder"]

_publish(globals())
