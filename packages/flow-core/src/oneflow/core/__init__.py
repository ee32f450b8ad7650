"""``oneflow.core``: modules that OneFlow programs import under this path."""
