"""``oneflow.advanced``; see `flow_core.api.advanced`."""

from flow_core.api.advanced import *
