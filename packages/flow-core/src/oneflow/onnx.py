"""``oneflow.onnx``; see `flow_core.api.session.export` and `flow_core.api.serving.model_import`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.serving.model_import import load
from flow_core.api.session.export import export_onnx as export

__all__ = ["export", "load"]

_publish(globals())
