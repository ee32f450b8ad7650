"""``oneflow.util``."""

from flow_core.api.job import unique_str

__all__ = ["unique_str"]
