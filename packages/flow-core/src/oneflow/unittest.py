"""``oneflow.unittest``; see `flow_core.api.compat.unittesting`."""

from flow_core.api.compat.unittesting import *
