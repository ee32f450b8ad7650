"""``layers`` of OneFlow 0.5's lazy API: `upsample_2d` takes ``align_corners``."""

from oneflow.layers import *  # isort: skip
from flow_core.api.compat.single_client import upsample_2d as upsample_2d  # type: ignore[assignment]
