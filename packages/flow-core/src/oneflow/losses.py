"""``oneflow.losses``; see `flow_core.api.nn.legacy_losses`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.nn.legacy_losses import *

_publish(globals())
