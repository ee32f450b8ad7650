"""``oneflow.onnx``; see `flow_core.api.elsewhere`."""

from flow_core.api.elsewhere import export_onnx as export

__all__ = ["export"]
