"""``oneflow.core.operator``: modules that OneFlow programs import under this path."""
