"""``oneflow.random``; see `flow_core.api.array.random`."""

from flow_core.api.array.random import *
from flow_core.api.calls.published import publish as _publish

_publish(globals())
