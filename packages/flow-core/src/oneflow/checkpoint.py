"""``oneflow.checkpoint``; see `flow_core.api.train`."""

from flow_core.api.train import get, save

__all__ = ["get", "save"]
