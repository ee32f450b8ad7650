"""Small ONNX models in files, which may be invalid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int | str]

MATRIX: Mapping[str, Shape] = {"x": (2, 3)}
"""The default inputs."""


def model_with(
    *nodes: NodeProto,
    inputs: Mapping[str, Shape] = MATRIX,
    kinds: Mapping[str, int] | None = None,
    outputs: Mapping[str, int] | None = None,
    opset: int = 18,
    **weights: Any,
) -> ModelProto:
    """Return a model of some nodes.

    Args:
        nodes: the nodes.
        inputs: the shapes of the inputs by name.
        kinds: the element types of inputs by name; float32 for others.
        outputs: the element types of the results by name; by default one float32 result y.
        opset: the version of the operators.
        weights: the initializers.
    """
    declared = [
        helper.make_tensor_value_info(name, (kinds or {}).get(name, TensorProto.FLOAT), shape)
        for name, shape in inputs.items()
    ]
    results = [
        helper.make_tensor_value_info(name, kind, (None,))
        for name, kind in (outputs or {"y": TensorProto.FLOAT}).items()
    ]
    arrays = [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()]
    graph = helper.make_graph(list(nodes), "model", declared, results, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def saved(path: Path, model: ModelProto) -> Path:
    """Write a model without checks."""
    path.write_bytes(model.SerializeToString())
    return path
