"""Data layouts for GPUs: 16-bit convolutions use NHWC, and so do the ops between them.

Tensor cores read contiguous channels; for NCHW tensors, cuDNN converts to NHWC and back around
every convolution. Float32 that may be rounded to 19 bits (TF32) also uses tensor cores: the pass
converts convolutions with enough input and output channels to NHWC; with fewer channels, cuDNN
copies the tensors in either layout, or does not use tensor cores. Exact float32 and float64 stay in
NCHW, the layout of kernels that do not use tensor cores.

Weights are reordered as well, once per step for all ops that read them; weights of 1 x 1 kernels
have the same bytes in both layouts. The algorithm is in `flow_core.passes.rewriting.layouts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flow_core.authoring.layouts import (
    FIRST,
    LAST,
    TO_FIRST,
    Layouts,
    LayoutTable,
    Rule,
    to_channels_last,
    wide_type,
)
from flow_core.authoring.layouts import layout_rules as rules
from flow_core.authoring.pass_api import PassContext, like_op, option
from flow_core.authoring.specs import Graph, Op, TensorType
from flow_cuda.device.config import allows_tf32, settings

CHANNELS = 32
"""The minimum number of input and of output channels with which cuDNN reads float32 NHWC
directly."""
HALF = ("float16", "bfloat16")

Wants = Callable[[TensorType], bool]
"""A function that says whether a convolution with weights of a type prefers NHWC."""


@dataclass(frozen=True)
class CudaLayout:
    """The pass that assigns layouts for GPUs."""

    choice: str = "auto"  # "auto", or "nhwc" or "nchw" for all convolutions
    device: str = "gpu"  # the device type whose ops are converted
    enabled: bool = option(True, "whether cuDNN computes convolutions", "enable_cudnn")
    name: str = "cuda_layout"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with NHWC activations between the ops that prefer NHWC."""
        if self.choice == "nchw" or not self.enabled:
            return graph
        tf32 = allows_tf32(context.settings)
        wants = partial(wants_last, tf32=tf32, always=self.choice == "nhwc")
        return to_channels_last(graph, table(wants), context.specs, {}, (self.device,))


def wants_last(weights: TensorType, tf32: bool, always: bool = False) -> bool:
    """Whether a convolution with weights of a type prefers NHWC.

    Axis 1 of the weights has the input channels of a group.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> [wants_last(tensor_type((64, n, 3, 3), float32), tf32=True) for n in (3, 64)]
    [False, True]
    """
    if always or weights.dtype.name in HALF:
        return True
    return tf32 and weights.dtype.name == "float32" and min(weights.shape[:2]) >= CHANNELS


def table(wants: Wants) -> LayoutTable:
    """Return the layout preferences of GPU ops."""
    convolutions = dict.fromkeys(("conv2d", "deconv2d", "conv_data_grad"), _conv)
    convolutions["conv_filter_grad"] = _filter_grad
    pools = (*rules.POOLS, *(f"{p}_grad" for p in rules.POOLS))
    return LayoutTable(
        wants={op: _asking(wants, rule) for op, rule in convolutions.items()},
        follows={
            **dict.fromkeys(pools, rules.pool),
            "normalization": rules.norm,
            "normalization_grad": rules.norm,
            "bias_add": rules.bias_add,
            "reduce_mean": rules.reduce,
            "reduce_sum": rules.reduce,
            "broadcast_like": rules.broadcast_like,
            "concat": rules.concat,
            "split": rules.split,
        },
        dtypes=("float32", *HALF),
        reorder="cuda_reorder",
    )


def _asking(wants: Wants, rule: Rule) -> Rule:
    """Return a rule that applies only to convolutions that prefer NHWC."""

    def asked(work: Layouts, op: Op) -> bool:
        weights = work.outputs(op)[0] if rule is _filter_grad else _weights(work, op)
        four = len(weights.shape) == 4 and op.attrs["data_format"] == FIRST
        return four and work.movable(op, 0, 1) and wants(weights) and rule(work, op)

    return asked


def _weights(work: Layouts, op: Op) -> TensorType:
    return work.rewriter.graph.type_of(op.inputs[1])


def _conv(work: Layouts, op: Op) -> bool:
    """Convert a convolution, a transposed convolution, or an input gradient."""
    inputs = tuple(work.wide(v, op) for v in op.inputs)
    (y,) = work.outputs(op)
    work.replace(op, _last(op, *inputs), (wide_type(y),))
    return True


def _filter_grad(work: Layouts, op: Op) -> bool:
    """Convert a filter gradient; an op reorders its result back to the layout of the weights."""
    inputs = tuple(work.wide(v, op) for v in op.inputs)
    (dw,) = work.outputs(op)
    wide = replace(_last(op, *inputs), name=f"{op.name}/nhwc")
    work.rewriter.before(op).add(wide, (wide_type(dw),))
    reason = f"{op.name} is of a variable in NCHW"
    back, type_ = work.reorder(op.name, op, wide.output(), TO_FIRST, reason, 0)
    work.rewriter.replace(op, back, (type_,))
    return True


def _last(op: Op, *inputs: Any) -> Op:
    return like_op(op, op.type, op.attrs.with_(data_format=LAST), inputs)


def configured() -> CudaLayout:
    """Return the pass, configured by environment variables."""
    return CudaLayout(settings().layout)
