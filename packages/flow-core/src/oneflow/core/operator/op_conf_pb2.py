"""``oneflow.core.operator.op_conf_pb2``: the numbers that stand for activations.

OneFlow's functions take functions, such as ``flow.math.relu``, as activations; programs use these
numbers in functions of their own.

>>> import oneflow.core.operator.op_conf_pb2 as op_conf_util
>>> op_conf_util.kNone, op_conf_util.kRelu
(0, 3)
"""

__all__ = ["kNone", "kRelu", "kSigmoid", "kTanH"]

kNone = 0
kTanH = 1
kSigmoid = 2
kRelu = 3
