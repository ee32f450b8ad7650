"""The evaluator of flow-core's ops for `flow_rules`: ``flow-rules check`` uses this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import FlowError
from flow_core.ir.graph import Attrs, AttrValue, TensorType, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import LocalContext, Part, local_attrs
from flow_core.testing.checks import evaluate_op, query
from flow_rules.layouts import Place
from flow_rules.layouts import TensorType as PlainType


def evaluate(
    op: str, attributes: Mapping[str, Any], inputs: Sequence[Array]
) -> Sequence[Array] | None:
    """Return the outputs and the overwritten inputs of an op, as its reference computes them.

    None if no plugin registers the op or if it has no reference.  Raises `ValueError` if the op
    refuses the inputs.
    """
    spec = default_registry().ops.get(op)
    if spec is None or spec.reference is None:
        return None
    arrays = [np.asarray(x) for x in inputs]
    try:
        return evaluate_op(spec, query(spec, arrays, attributes), arrays)
    except FlowError as error:
        raise ValueError(str(error)) from error


def localize(op: str, attributes: Mapping[str, Any], place: Place) -> Mapping[str, AttrValue]:
    """Return the attributes for one device's parts of an op."""
    spec = default_registry().ops[op]
    inputs, outputs = (
        tuple(Part(_type(t), region) for t, region in zip(types, regions, strict=True))
        for types, regions in (
            (place.inputs, place.input_regions),
            (place.outputs, place.output_regions),
        )
    )
    return local_attrs(spec, LocalContext(Attrs(attributes), inputs, outputs))


def _type(type_: PlainType) -> TensorType:
    return tensor_type(type_.shape, as_dtype(type_.dtype))
