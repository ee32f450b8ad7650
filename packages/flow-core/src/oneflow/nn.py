"""``oneflow.nn``; see `flow_core.api.nn`."""

from flow_core.api.nn import *
