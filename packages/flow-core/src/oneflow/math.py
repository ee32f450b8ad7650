"""``oneflow.math``; see `flow_core.api.math_module`."""

from flow_core.api.math_module import *
