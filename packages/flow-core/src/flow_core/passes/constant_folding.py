"""Constant folding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.bodies import WITH_BODIES
from flow_core.passes.rewriting.rewriter import Rewriter


@dataclass(frozen=True)
class ConstantFolding:
    """A pass that evaluates ops with constant inputs and one output of up to ``limit`` elements."""

    limit: int = 1024
    name: str = "constant_folding"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with evaluated ops replaced by ``literal`` and ``constant`` ops."""
        known: dict[Value, Any] = {}
        rewriter = Rewriter(graph)
        for op in graph.ops.values():
            folded = self._fold(op, graph, context, known)
            if folded is not None:
                rewriter.replace(op, folded)
        return rewriter.finish()

    def _fold(
        self, op: Op, graph: Graph, context: PassContext, known: dict[Value, Any]
    ) -> Op | None:
        spec, types = context.specs[op.type], graph.types[op.name]
        if len(types) != 1 or types[0].size > self.limit or spec.reference is None:
            return None
        if op.type in WITH_BODIES:  # the reference of a long loop is slow
            return None
        if spec.effect or spec.random or spec.mutates or any(v not in known for v in op.inputs):
            return None
        value = _evaluate(spec.reference, [known[v] for v in op.inputs], op.attrs, types[0])
        known[op.output()] = value
        if op.type in _LEAVES:
            return None
        leaf = _as_leaf(op, value, types[0])
        return leaf if context.has_kernel(leaf, (), types) else None


_LEAVES = ("constant", "literal")


def _evaluate(
    reference: Any, inputs: list[Any], attrs: Mapping[str, Any], type_: TensorType
) -> Any:
    """Compute an op with its reference; 16-bit numbers in float32, as the kernels do."""
    wide = [x.astype(as_dtype(x.dtype).accumulate.numpy, copy=False) for x in inputs]
    with np.errstate(all="ignore"):
        return np.asarray(reference(*wide, **attrs)).astype(type_.dtype.numpy)


def _as_leaf(op: Op, value: Any, type_: TensorType) -> Op:
    numbers = tuple(value.ravel().tolist())
    attrs: dict[str, Any] = {"shape": type_.shape, "dtype": type_.dtype.name}
    if numbers and all(n == numbers[0] for n in numbers):
        return replace(op, type="constant", inputs=(), attrs=Attrs({**attrs, "value": numbers[0]}))
    return replace(op, type="literal", inputs=(), attrs=Attrs({**attrs, "data": numbers}))
