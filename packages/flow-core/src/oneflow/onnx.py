"""``oneflow.onnx``; see `flow_core.api.session.export`."""

from flow_core.api.session.export import export_onnx as export

__all__ = ["export"]
