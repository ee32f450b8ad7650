"""``oneflow.env``; see `flow_core.api.env`."""

from flow_core.api.env import *
