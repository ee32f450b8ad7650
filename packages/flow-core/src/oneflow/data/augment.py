"""``oneflow.data.augment``; see `flow_data.datasets.augment`."""

from flow_core.api.calls.published import publish as _publish
from flow_data.datasets.augment import *

_publish(globals())
