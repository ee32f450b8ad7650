"""Soft limits."""

from flow_core.authoring.specs import emit


def softcap(x, cap=30.0, name=None):
    """Soft-limit a floating-point ``x`` to (-cap, cap); same shape and element type."""
    return emit("softcap", x, cap=float(cap), name=name)
