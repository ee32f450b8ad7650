"""Models that ONNX does not permit, or that have no counterpart, are refused with the reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_cases.files import model_with, saved
from onnx_cases.models import loaded_results

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import (
    CheckpointError,
    ConfigError,
    FlowError,
    InferenceError,
    UnsupportedError,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)
IMAGE = np.ones((1, 3, 8, 8), np.float32)
node, ints = helper.make_node, lambda *values: np.array(values, np.int64)
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def of(op: str, *names: str, attrs: Mapping[str, Any] | None = None, **options: Any) -> ModelProto:
    """Return a model of one node with the inputs x and ``names``."""
    shapes = {"inputs": {"x": IMAGE.shape}} if op in ("Conv", "MaxPool") else {}
    return model_with(node(op, ["x", *names], ["y"], **(attrs or {})), **{**shapes, **options})


SPLIT = node("Split", ["x", "s"], ["y", "z"], axis=1)
TWO = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
PLACES = {"y": TensorProto.FLOAT, "i": INT64}

INVALID: dict[str, tuple[ModelProto, str]] = {
    "concat": (of("Concat", "x", attrs={"axis": 5}), "Concat 'y'.*axis"),
    "softmax": (of("Softmax", attrs={"axis": 4}), "Softmax 'y'.*axis.*4"),
    "reduction": (of("ReduceSum", "a", a=ints(3)), "ReduceSum 'y'.*axis"),
    "gather axis": (of("Gather", "a", attrs={"axis": 3}, a=ints(1)), "Gather 'y'.*axis"),
    "gather": (of("Gather", "a", a=np.array(7)), "Gather 'y': index 7 in input 1.*-2 to 1"),
    "gathered rows": (of("Gather", "a", a=ints(0, -3)), "Gather 'y': index -3"),
    "short split": (model_with(SPLIT, outputs=TWO, s=ints(1, 1)), "Split 'y'.*split"),
    "long split": (model_with(SPLIT, outputs=TWO, s=ints(2, 9)), "Split 'y'.*split"),
    "fewer parts": (model_with(SPLIT, outputs=TWO, s=ints(3)), "Split 'y'.*split"),
    "short perm": (of("Transpose", attrs={"perm": [0]}), r"Transpose 'y': perm=\[0\].*2 axes"),
    "perm": (of("Transpose", attrs={"perm": [0, 0]}), "Transpose 'y'.*perm"),
    "kernel": (
        of("Conv", "w", attrs={"kernel_shape": [5, 5]}, w=np.ones((4, 3, 3, 3), np.float32)),
        r"Conv 'y': kernel_shape=\(5, 5\).*\(3, 3\)",
    ),
    "channels": (of("Conv", "w", w=np.ones((4, 2, 3, 3), np.float32)), "Conv 'y'"),
    "stride": (
        of("Conv", "w", attrs={"strides": [0, 0]}, w=np.ones((4, 3, 3, 3), np.float32)),
        "Conv 'y'.*strides",
    ),
    "no kernel": (of("MaxPool"), "kernel_shape"),
    "slice step": (
        of("Slice", *"seat", s=ints(0), e=ints(2), a=ints(1), t=ints(0)), "Slice 'y'.*step"
    ),
    "short pads": (of("Pad", "p", p=ints(1, 1)), "Pad 'y'.*[Pp]ads"),
    "too many": (
        model_with(node("TopK", ["x", "k"], ["y", "i"]), outputs=PLACES, k=ints(9)),
        "TopK 'y'",
    ),
    "reshape": (of("Reshape", "s", s=ints(4, -1)), "Reshape 'y'"),
    "zero size": (of("Reshape", "s", s=ints(2, 3, 0)), "Reshape 'y'"),
    "two rests": (of("Reshape", "s", s=ints(-1, -1)), "Reshape 'y'"),
    "squeeze": (of("Squeeze", "a", a=ints(1)), "Squeeze 'y'"),
    "unsqueeze": (of("Unsqueeze", "a", a=ints(0, 0)), "Unsqueeze 'y'.*[Aa]xis 0"),
    "negative repeats": (of("Tile", "r", r=ints(-2, 1)), "Tile 'y'.*[Rr]epeats"),
    "types": (of("Mul", "c", c=ints(2)), "Mul 'y'.*type.*float.*int64"),
    "step of a range": (
        model_with(
            node("Range", ["a", "b", "c"], ["r"]), node("Add", ["x", "r"], ["y"]),
            a=np.float32(0), b=np.float32(3), c=np.float32(0),
        ),
        "Range 'r'.*delta 0",
    ),
    "known reshape": (
        model_with(
            node("Reshape", ["c", "s"], ["r"]), node("Add", ["x", "r"], ["y"]),
            c=np.arange(6, dtype=np.int64), s=ints(4, 4),
        ),
        "Reshape 'r'",
    ),
    "float modulus": (of("Mod", "x"), "Mod 'y': fmod=0"),
    "no element type": (of("Cast", attrs={"to": 0}), "Cast 'y': Invalid tensor data type 0"),
    "attribute": (of("Relu", attrs={"slope": 1}), "slope"),
    "domain of shapes": (of("Expand", "s", s=ints(5, 3)), "Expand 'y'"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_model_is_refused(name: str, tmp_path: Path) -> None:
    model, text = INVALID[name]
    x = IMAGE if "dim_value: 8" in str(model.graph.input[0]) else X
    with pytest.raises((ConfigError, InferenceError), match=f"(?s){text}") as raised:
        loaded_results(saved(tmp_path / "m.onnx", model), [x])
    assert "models.py" in str(raised.value.at)


UNSUPPORTED: dict[str, tuple[ModelProto, str]] = {
    "training": (
        of("Dropout", "r", "t", r=np.float32(0.5), t=np.array(True)), "Dropout 'y': training mode"
    ),
    "training before opset 7": (of("Dropout", opset=6), "Dropout 'y': training mode"),
    "early broadcast": (
        of("Add", "c", attrs={"broadcast": 1, "axis": 0}, c=np.ones(2, np.float32), opset=6),
        "Add 'y': axis=0",
    ),
    "fed repeats": (
        model_with(
            node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
            node("Cast", ["m"], ["r"], to=INT64), node("Tile", ["x", "r"], ["y"]), opset=13,
        ),
        "Tile 'y': repeats computed from the inputs",
    ),
    "fed padding value": (
        model_with(
            node("ReduceMax", ["x"], ["v"], keepdims=0), node("Pad", ["x", "p", "v"], ["y"]),
            p=ints(1, 0, 0, 0),
        ),
        "Pad 'y': a value computed from the inputs",
    ),
    "places": (
        model_with(
            node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2]), inputs={"x": (1, 2, 3)},
            outputs=PLACES,
        ),
        "MaxPool 'y': the result 'i'",
    ),
    "operator": (of("Det"), "Det"),
    "opset": (of("Relu", opset=999), "opset 999"),
    "element type": (of("Cast", attrs={"to": TensorProto.UINT16},
                        outputs={"y": TensorProto.UINT16}), "Cast 'y': element type UINT16"),
    "text": (of("Cast", attrs={"to": TensorProto.STRING},
                outputs={"y": TensorProto.STRING}), "Cast 'y': element type STRING"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_model_without_a_counterpart_is_refused(name: str, tmp_path: Path) -> None:
    model, text = UNSUPPORTED[name]
    x = X.reshape(1, 2, 3) if name == "places" else X
    with pytest.raises(UnsupportedError, match=f"(?s){text}") as raised:
        loaded_results(saved(tmp_path / "m.onnx", model), [x])
    assert "models.py" in str(raised.value.at)


def test_inputs_must_have_the_declared_types_and_sizes(tmp_path: Path) -> None:
    ids = saved(tmp_path / "ids.onnx", of("Mul", "x", kinds={"x": INT64}, outputs={"y": INT64}))
    sizes = {"x": ("n", 3), "z": ("n", 3)}
    pair = model_with(node("Concat", ["x", "z"], ["y"], axis=0), inputs=sizes)
    both = saved(tmp_path / "both.onnx", pair)
    plain = saved(tmp_path / "plain.onnx", of("Relu"))
    cases: list[tuple[Path, list[Any], str]] = [
        (ids, [X], "shape \\(2, 3\\).*'x', float32.*int64"),
        (both, [X, np.ones((5, 3), np.float32)], "'z'.*n is 2.*one size for each name"),
        (plain, [X.astype(np.float64)], "float64.*float"),
        (plain, [X[:1]], "shape \\(1, 3\\).*\\(2, 3\\)"),
    ]
    for path, arrays, text in cases:
        with pytest.raises(ConfigError, match=f"(?s){text}"):
            loaded_results(path, arrays)
    assert loaded_results(both, [X, X])[0].shape == (4, 3)


def test_inputs_that_are_sequences_are_refused(tmp_path: Path) -> None:
    model = of("Relu")
    kind = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, (2, 3))
    model.graph.input[0].CopyFrom(kind)
    with pytest.raises(FlowError, match="sequence"):
        loaded_results(saved(tmp_path / "m.onnx", model), [X])


def broken(change: Any) -> ModelProto:
    model = of("Add", "w", w=np.ones((2, 3), np.float32))
    change(model.graph.initializer[0])
    return model


def external(tensor: TensorProto, name: str = "w.bin") -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", "0"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)


def test_unreadable_weights_are_refused(tmp_path: Path) -> None:
    def sized(size: int) -> Any:
        return lambda tensor: tensor.dims.__setitem__(0, size)

    changes = {
        "short data": lambda tensor: setattr(tensor, "raw_data", b"\0" * 7),
        "negative size": sized(-2), "large size": sized(2**62),
        "unknown type": lambda tensor: setattr(tensor, "data_type", 99),
        "no external data": external,
        "a long name": lambda tensor: external(tensor, "w" * 5000),
    }  # fmt: skip
    for change in changes.values():
        path = saved(tmp_path / "m.onnx", broken(change))
        with pytest.raises(ConfigError, match="an ONNX model") as raised:
            loaded_results(path, [X])
        assert "models.py" in str(raised.value.at)
        with pytest.raises(CheckpointError, match="an ONNX model"):
            flow.checkpoint.get(str(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes in folders")
def test_pipes_in_place_of_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    path = saved(tmp_path / "m.onnx", broken(external))
    os.mkfifo(tmp_path / "w.bin")
    for found, text in ((tmp_path / "pipe.onnx", "pipe"), (path, "not regular file")):
        with pytest.raises(ConfigError, match=text):
            loaded_results(found, [X])


def test_an_unused_invalid_weight_is_named(tmp_path: Path) -> None:
    model = of("Relu", u=np.ones(2, np.float32))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([b"text"], object), "u"))
    np.testing.assert_array_equal(loaded_results(saved(tmp_path / "m.onnx", model), [X])[0], X)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", of("Relu"))

    def job(source: Any, trainable: Any) -> Any:
        @flow.global_function()
        def loading(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return flow.onnx.load(source, x, trainable=trainable)

        return loading(X)

    for source, trainable, text in (
        (None, True, "None"), (3, True, "3"), (path, "(", "unterminated"), (path, 3, "trainable=3"),
        (path, [3], r"trainable=\[3\]"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=text) as raised:
            job(source, trainable)
        assert Path(str(raised.value.at).rpartition(":")[0]) == Path(__file__)
