"""``oneflow.onnx``; see `flow_core.api.session.export` and `model_import`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.export import export_onnx as export
from flow_core.api.session.model_import import load

__all__ = ["export", "load"]

_publish(globals())
