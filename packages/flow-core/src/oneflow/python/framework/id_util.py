"""``oneflow.python.framework.id_util``: names for ops that have none."""

from flow_core.api.session.job import unique_str as UniqueStr

__all__ = ["UniqueStr"]
