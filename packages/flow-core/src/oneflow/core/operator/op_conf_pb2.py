"""``oneflow.core.operator.op_conf_pb2``: the numbers by which programs name activations.

OneFlow's functions take functions (``flow.math.relu``) as activations; programs use these numbers
in their own functions.

>>> import oneflow.core.operator.op_conf_pb2 as op_conf_util
>>> op_conf_util.kNone, op_conf_util.kRelu
(0, 3)
"""

__all__ = ["kNone", "kRelu", "kSigmoid", "kTanH"]

kNone = 0
kTanH = 1
kSigmoid = 2
kRelu = 3
