"""``oneflow.layers``; see `flow_core.api.layers`."""

from flow_core.api.layers import *
