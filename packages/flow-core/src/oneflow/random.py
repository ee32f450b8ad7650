"""``oneflow.random``; see `flow_core.api.random`."""

from flow_core.api.random import *
