"""``oneflow.config``; see `flow_core.api.session.config`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.session.config import *

_publish(globals())
