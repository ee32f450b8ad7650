"""``oneflow.weights``; see `flow_core.api.session.weights`."""

from flow_core.api.session.weights import *
