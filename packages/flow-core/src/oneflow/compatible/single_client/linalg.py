"""``linalg`` of OneFlow 0.5's lazy API: `matmul` takes ``alpha`` before the name."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.single_client import matmul as matmul

_publish(globals())
