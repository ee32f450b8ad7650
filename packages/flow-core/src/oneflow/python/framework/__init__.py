"""``oneflow.python.framework``: what programs import from there by its path."""
