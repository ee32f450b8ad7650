"""``oneflow.util``: `unique_str`; see `flow_core.api.session.job`."""

from flow_core.api.session.job import unique_str

__all__ = ["unique_str"]
