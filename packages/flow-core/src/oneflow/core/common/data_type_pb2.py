"""``oneflow.core.common.data_type_pb2``: the numbers that stand for element types in OneFlow's
messages.

Functions of ``flow`` take the element types themselves, such as ``flow.float``, not these numbers.

>>> import oneflow.core.common.data_type_pb2 as data_type_util
>>> data_type_util.kFloat
2
"""

__all__ = [
    "kChar", "kDouble", "kFloat", "kFloat16", "kInt8", "kInt32", "kInt64", "kInvalidDataType",
    "kOFRecord", "kTensorBuffer", "kUInt8",
]  # fmt: skip

kInvalidDataType = 0
kChar = 1
kFloat = 2
kDouble = 3
kInt8 = 4
kInt32 = 5
kInt64 = 6
kUInt8 = 7
kOFRecord = 8
kFloat16 = 9
kTensorBuffer = 10
