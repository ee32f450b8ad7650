"""``oneflow.layers``; see `flow_core.api.layers`."""

from flow_core.api.encoding import categorical_ordinal_encoder
from flow_core.api.layers import *
