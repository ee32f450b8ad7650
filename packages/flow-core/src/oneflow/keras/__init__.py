"""``oneflow.keras``: activations under the path of OneFlow 0.1."""

from oneflow.keras import activations

__all__ = ["activations"]
