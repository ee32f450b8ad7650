"""``oneflow.unittest``; see `flow_core.api.compat.unittesting`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.unittesting import *

_publish(globals())
