"""``oneflow.linalg``; see `flow_core.api.linalg`."""

from flow_core.api.linalg import *
