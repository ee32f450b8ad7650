"""``oneflow.linalg``; see `flow_core.api.math.linalg`."""

from flow_core.api.math.linalg import *
