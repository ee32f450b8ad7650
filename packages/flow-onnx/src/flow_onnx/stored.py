"""The values that a model stores: variables, and the levels and scales of quantized weights.

Weights that are quantized from variables alone are stored as levels, a quarter of their size in
float32, instead of as nodes that quantize them whenever the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flow_core.authoring.pass_api import constants_of_variables
from flow_core.authoring.specs import ExportedJob, Graph, Op, OpSpec, Value

QUANTIZE = "quantize_linear"


def stored_ops(graph: Graph, specs: Mapping[str, OpSpec]) -> tuple[Op, ...]:
    """Return the ops whose results are weights of the model: each has one output."""
    once = constants_of_variables(graph, specs)
    quantized = [op for op in graph.of_type(QUANTIZE) if op.name in once]
    derived = {name for op in quantized for name in (op.name, op.inputs[1].op)}
    ops = graph.ops.values()
    return tuple(op for op in ops if op.type == "variable" or (op.inputs and op.name in derived))


def array_of(job: ExportedJob, value: Value) -> Any:
    """Return a value that depends on variables and constants alone, by the references of ops."""
    op = job.graph.ops[value.op]
    if op.type == "variable":
        return job.variables[op.name]
    inputs = [array_of(job, v) for v in op.inputs]
    with np.errstate(all="ignore"):
        found: Any = job.specs[op.type].reference(*inputs, **op.attrs)  # type: ignore[misc]
    result = found[value.index] if isinstance(found, tuple) else found
    return np.asarray(result).astype(job.graph.type_of(value).dtype.numpy, copy=False)
