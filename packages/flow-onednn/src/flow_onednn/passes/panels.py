"""Pack the weights of products of few rows in panels, outside of training.

The weights are packed when variables are overwritten, not in each step; see `kernels.few_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_core.authoring.pass_api import (
    KernelRewriter,
    PassContext,
    constants_of_variables,
    like_op,
)
from flow_core.authoring.specs import Attrs, Graph, KernelSpec, Op, tensor_type
from flow_core.base.dtypes import float32
from flow_onednn.kernels.few_rows import PACK, PANEL_ROWS, PRODUCT
from flow_onednn.native import compiler
from flow_onednn.panel_layout import packed_columns

PRODUCTS = ("matmul", "onednn_matmul")


@dataclass(frozen=True)
class Panels:
    """The pass that packs weights in panels."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_panels"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with packed weights, if no step changes the weights."""
        found = [
            op for type_ in PRODUCTS for op in graph.of_type(type_)
            if op.placement.device_type in self.devices
        ]  # fmt: skip
        once = constants_of_variables(graph, context.specs) if found else frozenset()
        rewriter = KernelRewriter(graph, self.kernels)
        for op in found:
            if op.inputs[1].op in once and _fits(graph, op) and compiler.available():
                _pack(rewriter, op)
        return rewriter.finish()


def _fits(graph: Graph, op: Op) -> bool:
    """Return whether the loop computes an op, and is faster."""
    attrs, types = op.attrs, (*graph.input_types(op), *graph.types[op.name])
    exact = all(t.dtype is float32 and t.size for t in types)
    matrices = len(types[0].shape) == len(types[1].shape) == 2
    plain = attrs["alpha"] == 1.0 and not attrs["transpose_a"] and not attrs.get("math")
    simple = plain and attrs.get("activation", "") in ("", "relu") and not attrs.get("accumulate")
    return exact and matrices and simple and types[0].shape[0] <= PANEL_ROWS


def _pack(rewriter: KernelRewriter, op: Op) -> None:
    x, weights, *bias = op.inputs
    columns, given = rewriter.type_of(op.output()).shape[1], rewriter.type_of(weights)
    types = (tensor_type((packed_columns(columns) * (given.size // columns),), float32),)
    name, how = rewriter.unique_name(f"{op.name}/packed"), {"transpose_b": op.attrs["transpose_b"]}
    pack = Op(name, PACK, (weights,), Attrs(how), op.placement)
    rewriter.before(op).add(pack, types)
    attrs = {"columns": columns, "activation": op.attrs.get("activation", "")}
    rewriter.replace(op, like_op(op, PRODUCT, attrs, (x, pack.output(), *bias)))
