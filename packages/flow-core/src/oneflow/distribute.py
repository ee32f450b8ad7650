"""``oneflow.distribute``; see `flow_core.api.session.distribute`."""

from flow_core.api.session.distribute import *
