"""``oneflow.linalg``; see `flow_core.api.math.linalg`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.math.linalg import *

_publish(globals())
