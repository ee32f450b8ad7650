"""``oneflow.python``: modules that programs import by this path."""
