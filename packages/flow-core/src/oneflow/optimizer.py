"""``oneflow.optimizer``; see `flow_core.api.optimizer`."""

from flow_core.api.optimizer import *
