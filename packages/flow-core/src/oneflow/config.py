"""``oneflow.config``; see `flow_core.api.session.config`."""

from flow_core.api.session.config import *
