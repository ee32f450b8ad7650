"""``oneflow.tensorrt``; see `flow_core.api.elsewhere`."""

from flow_core.api.elsewhere import cache_int8_calibration, write_int8_calibration

__all__ = ["cache_int8_calibration", "write_int8_calibration"]
