"""``oneflow.summary``; see `flow_core.api.summary`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.summary import *

_publish(globals())
