"""``oneflow.advanced``; see `flow_core.api.session.advanced`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.advanced import *

_publish(globals())
