"""``quantization`` of OneFlow 0.5's lazy API: functions take the formula of the grid."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.single_client import fake_quantization, min_max_observer
from oneflow.quantization import moving_average_min_max_observer, moving_average_min_maxObserver

__all__ = [
    "fake_quantization", "min_max_observer", "moving_average_min_maxObserver",
    "moving_average_min_max_observer",
]  # fmt: skip

_publish(globals())
