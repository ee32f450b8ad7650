"""``oneflow.python``: what programs import from there by its path."""
