"""The protobuf messages of OFRecord files, under the names that OneFlow's module has."""

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
    "BytesList",
    "DoubleList",
    "Feature",
    "FloatList",
    "Int32List",
    "Int64List",
    "OFRecord",
]
