"""``oneflow.python.framework``: modules that programs import by this path."""
