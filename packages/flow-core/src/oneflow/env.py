"""``oneflow.env``; see `flow_core.api.session.env`."""

from flow_core.api.session.env import *
