"""The protobuf messages of records, created at run time from descriptors.

OFRecord and TensorFlow's Example both map names to lists of values of one kind. The two formats
differ in the kinds of lists and in the message around the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES: Mapping[str, int] = {
    "bytes": _FIELD.TYPE_BYTES,
    "float": _FIELD.TYPE_FLOAT,
    "double": _FIELD.TYPE_DOUBLE,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
}

OFRECORD_KINDS: Mapping[str, tuple[str, int]] = {
    "bytes_list": ("bytes", 1),
    "float_list": ("float", 2),
    "double_list": ("double", 3),
    "int32_list": ("int32", 4),
    "int64_list": ("int64", 5),
}
"""The type of the values and the field number of each kind of list."""

EXAMPLE_KINDS: Mapping[str, tuple[str, int]] = {
    "bytes_list": ("bytes", 1), "float_list": ("float", 2), "int64_list": ("int64", 3)
}  # fmt: skip


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _list_message(file: Any, name: str, kind: str) -> None:
    message = file.message_type.add(name=name)
    field = message.field.add(
        name="value", number=1, type=_TYPES[kind], label=_FIELD.LABEL_REPEATED
    )
    if kind != "bytes":
        field.options.packed = True


def _feature_message(file: Any, package: str, kinds: Mapping[str, tuple[str, int]]) -> None:
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name, (kind, number) in kinds.items():
        _list_message(file, _camel(name), kind)
        feature.field.add(
            name=name,
            number=number,
            type=_FIELD.TYPE_MESSAGE,
            label=_FIELD.LABEL_OPTIONAL,
            type_name=f".{package}.{_camel(name)}",
            oneof_index=0,
        )


def _map_message(file: Any, package: str, name: str) -> None:
    """Add a message with ``map<string, Feature> feature = 1``."""
    message = file.message_type.add(name=name)
    entry = message.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    entry.field.add(
        name="value",
        number=2,
        type=_FIELD.TYPE_MESSAGE,
        label=_FIELD.LABEL_OPTIONAL,
        type_name=f".{package}.Feature",
    )
    message.field.add(
        name="feature",
        number=1,
        type=_FIELD.TYPE_MESSAGE,
        label=_FIELD.LABEL_REPEATED,
        type_name=f".{package}.{name}.FeatureEntry",
    )


def _wrapper(file: Any, package: str, name: str, inner: str) -> None:
    message = file.message_type.add(name=name)
    message.field.add(
        name=inner.lower(),
        number=1,
        type=_FIELD.TYPE_MESSAGE,
        label=_FIELD.LABEL_OPTIONAL,
        type_name=f".{package}.{inner}",
    )


def _pool() -> Any:
    """Create a separate descriptor pool, because other packages may define the same messages."""
    pool = descriptor_pool.DescriptorPool()
    of = descriptor_pb2.FileDescriptorProto(
        name="flow_data/ofrecord.proto", package="oneflow", syntax="proto2"
    )
    _feature_message(of, "oneflow", OFRECORD_KINDS)
    _map_message(of, "oneflow", "OFRecord")
    tf = descriptor_pb2.FileDescriptorProto(
        name="flow_data/example.proto", package="tensorflow", syntax="proto3"
    )
    _feature_message(tf, "tensorflow", EXAMPLE_KINDS)
    _map_message(tf, "tensorflow", "Features")
    _wrapper(tf, "tensorflow", "Example", "Features")
    for file in (of, tf):
        pool.Add(file)
    return pool


_POOL = _pool()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


OFRecord = _message("oneflow.OFRecord")
Feature = _message("oneflow.Feature")
BytesList = _message("oneflow.BytesList")
FloatList = _message("oneflow.FloatList")
DoubleList = _message("oneflow.DoubleList")
Int32List = _message("oneflow.Int32List")
Int64List = _message("oneflow.Int64List")
Example = _message("tensorflow.Example")
