"""Data layouts for oneDNN, whose convolutions, pooling and batch normalization prefer NHWC.

The algorithm is in `flow_core.passes.rewriting.layouts`; this module has the table of ops and the
rules that turn convolutions into oneDNN ops.  An ``onednn_reorder`` op is inserted wherever the
layout changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_core.authoring.layouts import LAST, Layouts, LayoutTable, to_channels_last, wide_type
from flow_core.authoring.layouts import layout_rules as rules
from flow_core.authoring.pass_api import PassContext, like_op
from flow_core.authoring.specs import AttrValue, Graph, KernelSpec, Op


@dataclass(frozen=True)
class NhwcLayout:
    """The pass that assigns layouts for this backend."""

    # The kernels of this backend, by op type; an op is rewritten if a kernel accepts it.
    kernels: Mapping[str, Sequence[KernelSpec]]
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_layout"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with NHWC activations between the ops that prefer them."""
        return to_channels_last(graph, TABLE, context.specs, self.kernels, self.devices)


_GEOMETRY = ("kernel_size", "strides", "dilation_rate", "padding_before", "groups")


def _geometry(op: Op) -> dict[str, AttrValue]:
    return {"weights_last": False, **{k: op.attrs[k] for k in _GEOMETRY}}


def _as_written(work: Layouts, op: Op, type_: str, **more: AttrValue) -> bool:
    """Replace a convolution that the program wrote in NHWC by an op that can be fused."""
    if op.attrs["data_format"] != LAST or not work.movable(op, 0, 1):
        return False
    attrs: dict[str, AttrValue] = {**_geometry(op), **more, "weights_last": True}
    inputs = [work.plain(v, op) for v in op.inputs[:2]]
    return work.rewriter.replace_if_accepted(op, like_op(op, type_, attrs, inputs))


def _conv(work: Layouts, op: Op) -> bool:
    after = op.attrs["padding_after"] or op.attrs["padding_before"]
    if not work.is_first(op, 0, 1):
        return _as_written(work, op, "onednn_conv", padding_after=after, activation="")
    (y,) = work.outputs(op)
    attrs = {**_geometry(op), "padding_after": after, "activation": ""}
    x = work.wide(op.inputs[0], op)
    return work.attempt(op, like_op(op, "onednn_conv", attrs, (x, op.inputs[1])), wide_type(y))


def _conv_data_grad(work: Layouts, op: Op) -> bool:
    (dx,) = work.outputs(op)
    if not work.is_first(op, 0, 1):
        return _as_written(work, op, "onednn_conv_data_grad", space=dx.shape[1:3])
    attrs = {**_geometry(op), "space": dx.shape[2:]}
    dy = work.wide(op.inputs[0], op)
    new = like_op(op, "onednn_conv_data_grad", attrs, (dy, op.inputs[1]))
    return work.attempt(op, new, wide_type(dx))


def _conv_filter_grad(work: Layouts, op: Op) -> bool:
    if not work.is_first(op, 0, 1):
        return _as_written(work, op, "onednn_conv_filter_grad", bias=False)
    inputs = [work.wide(v, op) for v in op.inputs]
    attrs = {**_geometry(op), "bias": False}
    new = like_op(op, "onednn_conv_filter_grad", attrs, inputs)
    return work.rewriter.replace_if_accepted(op, new)  # filters keep their layout


TABLE = LayoutTable(
    wants={
        "conv2d": _conv,
        "conv_data_grad": _conv_data_grad,
        "conv_filter_grad": _conv_filter_grad,
        **dict.fromkeys((*rules.POOLS, *(f"{p}_grad" for p in rules.POOLS)), rules.pool),
        "normalization": rules.norm,
        "normalization_grad": rules.norm,
    },
    follows={
        "bias_add": rules.bias_add,
        "reduce_mean": rules.reduce,
        "reduce_sum": rules.reduce,
        "broadcast_like": rules.broadcast_like,
        "quantize_linear": rules.one_grid,
        "dequantize_linear": rules.one_grid,
    },
    dtypes=("float32", "bfloat16"),
    reorder="onednn_reorder",
)
