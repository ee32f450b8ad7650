"""``oneflow.quantization``; see `flow_core.api.nn.quantization`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.nn.quantization import (
    calibrate,
    dequantize_linear,
    fake_quantization,
    min_max_observer,
    moving_average_min_max_observer,
    quantize_linear,
)
from flow_core.api.nn.quantization import (
    moving_average_min_max_observer as moving_average_min_maxObserver,
)

__all__ = [
    "calibrate", "dequantize_linear", "fake_quantization", "min_max_observer",
    "moving_average_min_maxObserver", "moving_average_min_max_observer", "quantize_linear",
]  # fmt: skip

_publish(globals())
