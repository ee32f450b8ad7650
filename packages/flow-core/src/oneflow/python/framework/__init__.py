"""``oneflow.python.framework``: modules that programs import under this path."""
