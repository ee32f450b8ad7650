"""The protobuf messages of OFRecord files, with the same names as in OneFlow's module."""

from flow_data.records.schema import (
    BytesList,
    DoubleList,
    Feature,
    FloatList,
    Int32List,
    Int64List,
    OFRecord,
)

__all__ = [
    "BytesList", "DoubleList", "Feature", "FloatList", "Int32List", "Int64List", "OFRecord",
]  # fmt: skip
