"""``oneflow.checkpoint``; see `flow_core.api.session.train`."""

from flow_core.api.session.train import get, save

__all__ = ["get", "save"]
