"""``oneflow.python.ops``: modules that programs import under this path."""
