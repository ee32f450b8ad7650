"""``oneflow.keras.activations``; see `flow_core.api.math` and `flow_core.api.nn`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.math import gelu, relu, sigmoid, tanh
from flow_core.api.nn.basic import softmax

__all__ = ["gelu", "relu", "sigmoid", "softmax", "tanh"]

_publish(globals())
