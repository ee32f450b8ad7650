"""``oneflow.python.ops``: what programs import from there by its path."""
