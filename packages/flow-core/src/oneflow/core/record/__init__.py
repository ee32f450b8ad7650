"""``oneflow.core.record``: modules that OneFlow programs import under this path."""
