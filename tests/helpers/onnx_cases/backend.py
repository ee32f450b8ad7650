"""The test cases of operators that the onnx package has, run in jobs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from flow_core.base.errors import FlowError
from flow_onnx.importers import random
from onnx_cases.models import loaded_results

KINDS = ("fed", "known", "constant")
"""Which inputs become constants of the model: none, all but the first, all."""

NARROW = (2e-2, 2e-2)
"""Tolerances of 16-bit types, with which the cases are computed in other orders."""


def cases() -> Iterator[tuple[str, ModelProto, list[Any], list[Any], tuple[float, float]]]:
    """Yield name, model, inputs, results and tolerances of the cases of tensors.

    The numbers of operators that draw them depend on the generator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    for case in found:
        nodes = case.model.graph.node if case.model is not None else ()
        if any(node.op_type in random.IMPORTERS for node in nodes):
            continue
        for inputs, outputs in case.data_sets or ():
            fed, right = ([as_array(x) for x in side] for side in (inputs, outputs))
            if case.model is not None and all(isinstance(x, np.ndarray) for x in (*fed, *right)):
                yield case.name, case.model, fed, right, (case.rtol, case.atol)


def as_array(value: Any) -> Any:
    """Return tensors and numbers as arrays, and other values unchanged."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def variant(model: ModelProto, inputs: list[Any], kind: str) -> tuple[ModelProto, list[Any]]:
    """Return the model with some inputs as constants, and the inputs that remain."""
    if kind == "fed":
        return model, inputs
    fed = [i for i, x in enumerate(inputs) if kind == "known" and i == 0 and x.size]
    declared, nodes = list(model.graph.input), list(model.graph.node)
    changed = ModelProto()
    changed.CopyFrom(model)
    del changed.graph.input[:], changed.graph.node[:]
    for i, (value, x) in enumerate(zip(declared, inputs, strict=True)):
        tensor = numpy_helper.from_array(x, value.name)
        if i in fed:
            changed.graph.input.append(value)
        elif kind == "known":
            changed.graph.initializer.append(tensor)
        else:
            constant = helper.make_node("Constant", [], [value.name], value=tensor)
            changed.graph.node.append(constant)
    changed.graph.node.extend(nodes)
    return changed, [inputs[i] for i in fed]


def verdict(
    path: Path, model: ModelProto, inputs: list[Any], outputs: list[Any], tolerance: Any
) -> str:
    """Return "passed", "wrong", or the reason of a refusal."""
    path.write_bytes(model.SerializeToString())
    try:
        found = loaded_results(path, [stored(x) for x in inputs])
    except FlowError as error:
        return f"{type(error).__name__}: {error.found}"
    pairs = list(zip(found, map(stored, outputs), strict=False))
    fits = len(found) == len(outputs) and all(close(a, b, tolerance) for a, b in pairs)
    return "passed" if fits else f"wrong: {found}, right {outputs}"


def stored(array: Any) -> Any:
    """Return booleans as int8, their element type in jobs."""
    return array.astype(np.int8) if array.dtype == np.bool_ else array


def close(found: Any, expected: Any, tolerance: tuple[float, float]) -> bool:
    """Return whether two arrays have one type, and equal numbers up to rounding."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    narrow = expected.dtype.itemsize == 2
    limits = NARROW if narrow else (max(tolerance[0], 1e-3), max(tolerance[1], 1e-5))
    wide = [x.astype(np.float64) for x in (found, expected)]
    return bool(np.allclose(*wide, *limits, equal_nan=True))
