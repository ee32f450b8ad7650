"""``oneflow.layers``; see `flow_core.api.nn.layers`."""

from flow_core.api.array.encoding import categorical_ordinal_encoder as categorical_ordinal_encoder
from flow_core.api.calls.published import publish as _publish
from flow_core.api.nn.layers import *
from flow_core.api.nn.layers_experts import *
from flow_core.api.nn.layers_norm import *
from flow_core.api.nn.layers_sequence import *

_publish(globals())
