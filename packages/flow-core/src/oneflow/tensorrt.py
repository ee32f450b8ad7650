"""``oneflow.tensorrt``; see `flow_core.api.compat.unsupported`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.unsupported import cache_int8_calibration, write_int8_calibration

__all__ = ["cache_int8_calibration", "write_int8_calibration"]

_publish(globals())
