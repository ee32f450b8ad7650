"""``oneflow.python.ops``: modules that programs import by this path."""
