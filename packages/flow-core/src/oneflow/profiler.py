"""``oneflow.profiler``: ranges to profile, as in OneFlow 0.4."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_names import nvtx_end, nvtx_start
from flow_core.api.compat.later_session import range_pop, range_push

__all__ = ["nvtx_end", "nvtx_start", "range_pop", "range_push"]

_publish(globals())
