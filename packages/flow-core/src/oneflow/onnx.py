"""``oneflow.onnx``; see `flow_core.api.export`."""

from flow_core.api.export import export_onnx as export

__all__ = ["export"]
