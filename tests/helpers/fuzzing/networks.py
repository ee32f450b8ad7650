"""ONNX models: as parts of jobs, and as weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx import numpy_helper as arrays
from onnx.external_data_helper import set_external_data
from onnx_cases.files import model_with

import oneflow as flow
import oneflow.typing as tp
from flow_onnx import weights
from fuzzing.mutations import EXTREMES, TEXTS, mutate_bytes
from fuzzing.target import Target

X = np.arange(6, dtype=np.float32).reshape(2, 3)
_IMAGE = np.ones((2, 3, 8, 8), np.float32)
_DATA = "weights.data"
_MOST_RUN = 1 << 27
"""Bytes of arenas up to which a loaded model is run, too."""

node = helper.make_node


def ints(*values: int) -> Any:
    """An array of 64-bit integers."""
    return np.array(values, np.int64)


# ------------------------------------------------------------------------------------------- seeds


def _dense() -> ModelProto:
    rng = np.random.default_rng(0)
    return model_with(
        node("Gemm", ["x", "w", "b"], ["h"], alpha=0.5, transB=1),
        node("LayerNormalization", ["h", "g"], ["n"], axis=-1),
        node("Softmax", ["n"], ["p"], axis=1),
        node("ReduceMean", ["p", "a"], ["y"], keepdims=1),
        w=rng.standard_normal((4, 3), np.float32), b=np.ones(4, np.float32),
        g=np.ones(4, np.float32), a=ints(1),
    )  # fmt: skip


def _convolution() -> ModelProto:
    ones = np.ones(4, np.float32)
    return model_with(
        node("Conv", ["x", "w", "s"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 1]),
        node("BatchNormalization", ["h", "s", "s2", "m", "v"], ["n"], epsilon=1e-5),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Pad", ["p", "pads"], ["q"], mode="reflect"),
        node("Resize", ["q", "", "scales"], ["z"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("GlobalAveragePool", ["z"], ["f"]),
        node("Flatten", ["f"], ["y"]),
        inputs={"x": _IMAGE.shape},
        w=np.ones((4, 3, 3, 3), np.float32), s=ones, s2=ones, m=ones, v=ones,
        pads=ints(0, 0, 1, 1, 0, 0, 0, 0), scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip


def _shapes() -> ModelProto:
    return model_with(
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["rows"], axis=0),
        node("Concat", ["rows", "three"], ["t"], axis=0),
        node("ConstantOfShape", ["t"], ["z"], value=arrays.from_array(np.ones(1, np.float32))),
        node("Range", ["low", "high", "step"], ["r"]),
        node("Expand", ["r", "t"], ["e"]),
        node("Add", ["z", "e"], ["u"]),
        node("Tile", ["x", "twice"], ["w"]),
        node("Slice", ["w", "start", "stop", "axes"], ["v"]),
        node("Split", ["v", "parts"], ["v1", "v2"], axis=0),
        node("Concat", ["v1", "v2"], ["v3"], axis=0),
        node("Transpose", ["v3"], ["vt"], perm=[1, 0]),
        node("Reshape", ["vt", "shape"], ["k"]),
        node("Where", ["flags", "k", "u"], ["y"]),
        zero=ints(0), three=ints(3), low=np.float32(0), high=np.float32(3), step=np.float32(1),
        twice=ints(2, 1), start=ints(1), stop=ints(3), axes=ints(0), parts=ints(1, 1),
        shape=ints(2, -1), flags=np.array([True, False, True]),
    )  # fmt: skip


def _stored_elsewhere() -> ModelProto:
    """A sparse weight, and one in a file beside the model."""
    model = model_with(
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "s"], ["y"]),
        w=np.ones((3, 2), np.float32),
    )
    (weight,) = model.graph.initializer
    set_external_data(weight, _DATA, offset=0, length=24)
    weight.ClearField("raw_data")
    values = arrays.from_array(np.array([3], np.float32), "s")
    index = arrays.from_array(ints(1), "s_index")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, index, (2, 2)))
    return model


@lru_cache(maxsize=1)
def _models() -> tuple[bytes, ...]:
    made = (_dense(), _convolution(), _shapes(), _stored_elsewhere())
    return tuple(model.SerializeToString() for model in made)


# --------------------------------------------------------------------------------------- mutations

_OPERATORS = (
    "Add", "AveragePool", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv",
    "ConvTranspose", "CumSum", "DepthToSpace", "Dropout", "Einsum", "Equal", "Erf", "Expand",
    "Flatten", "Gather", "GatherElements", "GatherND", "Gemm", "Identity", "If", "LSTM", "Loop",
    "MatMul", "MaxPool", "Mod", "NonZero", "OneHot", "Pad", "Pow", "Range", "ReduceSum", "Reshape",
    "Resize", "ScatterND", "Shape", "Size", "Slice", "Softmax", "Split", "Squeeze", "Tile", "TopK",
    "Transpose", "Trilu", "Unsqueeze", "Upsample", "Where", "", "NoSuchOperator",
)  # fmt: skip
_SIZES = (*EXTREMES, -1, -2, -(2**31), -(2**63), 5, 16, 1000, 2**20)


def _size(rng: random.Random) -> int:
    drawn = rng.choice(_SIZES)
    return drawn - (1 << 64) if drawn >= 1 << 63 else drawn


def _text(rng: random.Random) -> str:
    drawn = rng.choice((*TEXTS, "reflect", "edge", "linear", "nearest", "SAME_UPPER", "x", "w"))
    return drawn.encode("utf-8", "replace").decode()


def _change_numbers(values: Any, rng: random.Random) -> None:
    """Change one of some repeated integers, or how many there are."""
    if not values or rng.random() < 0.2:
        values.append(_size(rng))
    elif rng.random() < 0.2:
        del values[rng.randrange(len(values))]
    else:
        values[rng.randrange(len(values))] = _size(rng)


def _change_tensor(tensor: TensorProto, rng: random.Random) -> None:
    action = rng.randrange(8)
    if action < 2:
        _change_numbers(tensor.dims, rng)
    elif action == 2:
        tensor.data_type = rng.choice((*range(25), -1, 2**31 - 1))
    elif action < 6 and tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) % 8 == 0:
        sizes = np.frombuffer(tensor.raw_data, np.int64).tolist()
        _change_numbers(sizes, rng)
        tensor.raw_data = ints(*sizes).tobytes()
        tensor.dims[:] = [len(sizes)] if tensor.dims else []
    elif tensor.external_data:
        entry = rng.choice(tensor.external_data)
        entry.value = rng.choice(
            (str(_size(rng)), _text(rng), "../" + _DATA, "/etc/passwd", "pipe")
        )
    elif action == 6:
        tensor.name = _text(rng)
    else:
        tensor.raw_data = mutate_bytes(tensor.raw_data, rng)


def _change_attribute(attribute: AttributeProto, rng: random.Random) -> None:
    if attribute.ints:
        _change_numbers(attribute.ints, rng)
    elif attribute.HasField("t"):
        _change_tensor(attribute.t, rng)
    elif rng.random() < 0.1:
        attribute.name = rng.choice((_text(rng), "axis", "value", "to", "group"))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = _text(rng).encode()
    else:
        attribute.i = _size(rng)


def _change_node(proto: NodeProto, names: Sequence[str], rng: random.Random) -> None:
    action = rng.randrange(6)
    if action < 2 and proto.attribute:
        _change_attribute(rng.choice(proto.attribute), rng)
    elif action == 2:
        proto.op_type = rng.choice(_OPERATORS)
    elif action == 3 and proto.input:
        proto.input[rng.randrange(len(proto.input))] = rng.choice((*names, "", _text(rng)))
    elif action == 4:
        rng.choice((proto.input, proto.output)).append(rng.choice((*names, "more", "")))
    elif proto.input:
        del proto.input[rng.randrange(len(proto.input))]
    else:
        proto.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft"))


def _change_graph(graph: GraphProto, rng: random.Random) -> None:
    names = [name for proto in graph.node for name in (*proto.input, *proto.output)]
    action = rng.randrange(12)
    if action < 5 and graph.node:
        _change_node(rng.choice(graph.node), names, rng)
    elif action < 9 and graph.initializer:
        _change_tensor(rng.choice(graph.initializer), rng)
    elif action == 9 and graph.sparse_initializer:
        sparse = rng.choice(graph.sparse_initializer)
        if rng.random() < 0.5:
            _change_numbers(sparse.dims, rng)
        else:
            _change_tensor(rng.choice((sparse.values, sparse.indices)), rng)
    elif action == 10 and graph.node:
        at = rng.randrange(len(graph.node))
        more = [NodeProto.FromString(graph.node[at].SerializeToString())] * rng.choice((1, 1, 300))
        graph.node.extend(more)
    else:
        value = rng.choice([*graph.input, *graph.output])
        shape = value.type.tensor_type.shape
        if shape.dim and rng.random() < 0.7:
            rng.choice(shape.dim).dim_value = _size(rng)
        elif rng.random() < 0.5:
            value.type.tensor_type.elem_type = rng.choice((0, 1, 6, 7, 8, 9, 10, 16, 99))
        else:
            value.name = rng.choice((*names, _text(rng)))


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes, or a model with one to four changed nodes, weights, inputs or results."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    model = ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change_graph(model.graph, rng)
    if rng.random() < 0.05:
        model.opset_import[0].version = rng.choice((0, 1, 7, 13, 21, 99, 2**31))
    made: bytes = model.SerializeToString()
    return made


# ----------------------------------------------------------------------------------------- readers


def _beside(folder: Path) -> Path:
    (folder / _DATA).write_bytes(np.ones(6, np.float32).tobytes())
    (folder / "pipe").unlink(missing_ok=True)
    return folder / "model.onnx"


def _load(path: Path, x: Any, runs: bool) -> None:
    """Load a model into a job, compile the job, and run it if it is small."""
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Bundle[tp.Numpy]:
        found = flow.onnx.load(path, x)
        return list(found) if isinstance(found, tuple) else [found]

    plan = job.plan()
    if runs and sum(arena.nbytes for arena in plan.arenas) <= _MOST_RUN:
        job(x)


def _open_model(folder: Path) -> Callable[[bytes, int], object]:
    path = _beside(folder)

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        image = b"Conv" in data or b"GlobalAveragePool" in data
        _load(path, _IMAGE if image else X, number % 2 == 0)

    return read


def _open_weights(folder: Path) -> Callable[[bytes, int], object]:
    path = _beside(folder)

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        for array in weights.read(path).values():
            np.asarray(array).sum()

    return read


TARGETS = (
    Target("onnx", _models, _open_model, _mutate, weight=0.5),
    Target("onnx-weights", _models, _open_weights, _mutate, weight=1.0),
)
