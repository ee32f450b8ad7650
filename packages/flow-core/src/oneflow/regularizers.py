"""``oneflow.regularizers``; see `flow_core.api.array.regularizers`."""

from flow_core.api.array.regularizers import *
