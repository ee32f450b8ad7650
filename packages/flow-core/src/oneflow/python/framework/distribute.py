"""``oneflow.python.framework.distribute``; see `flow_core.api.distribute`."""

from flow_core.api.distribute import *
