"""``oneflow.core``: modules that OneFlow programs import by this path."""
