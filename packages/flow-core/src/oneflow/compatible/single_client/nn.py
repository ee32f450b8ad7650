"""``nn`` of OneFlow 0.5's lazy API: `conv2d` takes a bias."""

from flow_core.api.calls.published import publish as _publish

from oneflow.nn import *  # isort: skip
from flow_core.api.compat.single_client import conv2d as conv2d  # type: ignore[assignment]

_publish(globals())
