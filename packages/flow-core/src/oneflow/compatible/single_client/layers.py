"""``layers`` of OneFlow 0.5's lazy API: `upsample_2d` takes ``align_corners``."""

from flow_core.api.calls.published import publish as _publish

from oneflow.layers import *  # isort: skip
from flow_core.api.compat.single_client import upsample_2d as upsample_2d  # type: ignore[assignment]

_publish(globals())
