"""``oneflow.core``: what programs for OneFlow import from there."""
