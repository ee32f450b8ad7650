"""``oneflow.random``; see `flow_core.api.array.random`."""

from flow_core.api.array.random import *
