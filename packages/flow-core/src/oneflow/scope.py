"""``oneflow.scope``; see `flow_core.api.session.scope`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.scope import *

_publish(globals())
