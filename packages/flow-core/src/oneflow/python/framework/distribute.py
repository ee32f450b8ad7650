"""``oneflow.python.framework.distribute``; see `flow_core.api.session.distribute`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.distribute import *

_publish(globals())
