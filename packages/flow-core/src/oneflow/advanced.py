"""``oneflow.advanced``; see `flow_core.api.session.advanced`."""

from flow_core.api.session.advanced import *
