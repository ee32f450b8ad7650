"""``oneflow.weights``; see `flow_core.api.session.weights`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.weights import *

_publish(globals())
