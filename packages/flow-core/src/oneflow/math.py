"""``oneflow.math``; see `flow_core.api.math`."""

from flow_core.api.math import *
