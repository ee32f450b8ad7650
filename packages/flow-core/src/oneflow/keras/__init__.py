"""``oneflow.keras``: activations under the path of OneFlow 0.1."""

from flow_core.api.calls.published import publish as _publish
from oneflow.keras import activations

__all__ = ["activations"]

_publish(globals())
