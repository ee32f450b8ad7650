"""``oneflow.losses``; see `flow_core.api.nn.legacy_losses`."""

from flow_core.api.nn.legacy_losses import *
