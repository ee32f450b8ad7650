"""``oneflow.train``; see `flow_core.api.train`."""

from flow_core.api.train import CheckPoint, SimpleCheckPointManager

__all__ = ["CheckPoint", "SimpleCheckPointManager"]
