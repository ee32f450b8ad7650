"""``oneflow.math``; see `flow_core.api.math`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_names import (
    fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout,
)
from flow_core.api.math.array import *
from flow_core.api.math.binary import *
from flow_core.api.math.comparison import *
from flow_core.api.math.reduce import *
from flow_core.api.math.trigonometry import *
from flow_core.api.math.unary import *
from flow_core.api.math.unary import sigmoid as sigmoid

logistic = sigmoid

_publish(globals())
