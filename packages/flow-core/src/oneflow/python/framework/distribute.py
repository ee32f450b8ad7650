"""``oneflow.python.framework.distribute``; see `flow_core.api.session.distribute`."""

from flow_core.api.session.distribute import *
