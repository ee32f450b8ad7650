"""``oneflow.data.datasets``; see `flow_data.datasets`."""

from flow_core.api.calls.published import publish as _publish
from flow_data.datasets import *

_publish(globals())
