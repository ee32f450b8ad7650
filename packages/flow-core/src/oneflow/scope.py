"""``oneflow.scope``; see `flow_core.api.scope`."""

from flow_core.api.scope import *
