"""``oneflow.regularizers``; see `flow_core.api.array.regularizers`."""

from flow_core.api.array.regularizers import *
from flow_core.api.calls.published import publish as _publish

_publish(globals())
