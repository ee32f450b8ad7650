"""``oneflow.math``; see `flow_core.api.math`."""

from flow_core.api.compat.later_names import fused_scale_tril_softmax_dropout
from flow_core.api.math import *
from flow_core.api.math import sigmoid as logistic
