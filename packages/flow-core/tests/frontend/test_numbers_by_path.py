"""Modules of OneFlow protobuf enumerations that programs import constants from."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "numbers"),
    [
        ("operator.op_conf_pb2", {"kNone": 0, "kTanH": 1, "kSigmoid": 2, "kRelu": 3}),
        ("common.data_type_pb2", {"kFloat": 2, "kInt32": 5, "kFloat16": 9}),
    ],
)
def test_enumeration_constants(module: str, numbers: dict[str, int]) -> None:
    found = vars(importlib.import_module(f"oneflow.core.{module}"))
    assert {name: found[name] for name in numbers} == numbers
    exported = {name for name in found if not name.startswith("_")}
    assert set(found["__all__"]) == exported
    assert len({found[name] for name in exported}) == len(exported)
