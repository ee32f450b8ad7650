"""``oneflow.core.job``: modules that OneFlow programs import under this path."""
