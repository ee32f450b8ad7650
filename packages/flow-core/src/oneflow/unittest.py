"""``oneflow.unittest``; see `flow_core.api.unittesting`."""

from flow_core.api.unittesting import *
