"""``oneflow.regularizers``; see `flow_core.api.regularizers`."""

from flow_core.api.regularizers import *
