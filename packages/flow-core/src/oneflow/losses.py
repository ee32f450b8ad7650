"""``oneflow.losses``; see `flow_core.api.losses`."""

from flow_core.api.losses import *
