"""``oneflow.distribute``; see `flow_core.api.distribute`."""

from flow_core.api.distribute import *
