"""``oneflow.scope``; see `flow_core.api.session.scope`."""

from flow_core.api.session.scope import *
