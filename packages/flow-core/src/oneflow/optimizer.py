"""``oneflow.optimizer``; see `flow_core.api.optim.optimizer`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.optim.averages import *
from flow_core.api.optim.combined import *
from flow_core.api.optim.optimizer import *

_publish(globals())
