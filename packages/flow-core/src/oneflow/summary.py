"""``oneflow.summary``; see `flow_core.api.summary`."""

from flow_core.api.summary import *
