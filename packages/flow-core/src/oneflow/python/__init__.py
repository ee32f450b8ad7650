"""``oneflow.python``: modules that programs import under this path."""
