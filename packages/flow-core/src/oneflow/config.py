"""``oneflow.config``; see `flow_core.api.config`."""

from flow_core.api.config import *
