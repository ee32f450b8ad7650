"""``oneflow.core.common``: modules that OneFlow programs import under this path."""
