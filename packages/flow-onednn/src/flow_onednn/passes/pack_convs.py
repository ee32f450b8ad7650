"""Pack the weights of convolutions outside of training, and fuse what follows them.

The weights are packed when variables are overwritten, not in each step. A residual addition and a
limit of the result (relu or a clip) become a part of the convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from flow_core.authoring.pass_api import (
    KernelRewriter,
    PassContext,
    constants_of_variables,
    like_op,
)
from flow_core.authoring.specs import Attrs, AttrValue, Graph, KernelSpec, Op, Value, tensor_type
from flow_core.base.dtypes import float32
from flow_onednn.kernels.convolution.packed import PACK, PRODUCT, packed_size
from flow_onednn.ops import GEOMETRY

CONV = "onednn_conv"


@dataclass(frozen=True)
class PackConvs:
    """The pass that packs the weights of convolutions."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_pack_convs"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with packed weights, if no step changes the weights."""
        convs = [op for op in graph.of_type(CONV) if op.placement.device_type in self.devices]
        once = constants_of_variables(graph, context.specs) if convs else frozenset()
        rewriter = KernelRewriter(graph, self.kernels)
        bounds: dict[Value, Value] = {}
        for conv in convs:
            if all(value.op in once for value in conv.inputs[1:]) and rewriter.is_untouched(conv):
                _pack(rewriter, conv, bounds)
        return rewriter.finish()


@dataclass(slots=True)
class Chain:
    """A convolution, and the ops that become a part of it."""

    ops: list[Op]  # the ops, the convolution first
    residual: Value | None = None  # the value that is added to the result; None for none
    low: float = -inf  # the limits of the result
    high: float = inf

    @property
    def last(self) -> Op:
        """The last op."""
        return self.ops[-1]


def chain_after(rewriter: KernelRewriter, conv: Op) -> Chain:
    """Return the ops after a convolution that the primitive can compute."""
    chain = Chain([conv])
    if conv.attrs.get("activation") == "relu":
        chain.low = 0.0
        return chain
    add = rewriter.only_reader(conv.output(), "broadcast_add")
    others = [v for v in add.inputs if v != conv.output()] if add is not None else []
    type_ = rewriter.type_of(conv.output())
    if add is not None and [rewriter.type_of(v) for v in others] == [type_]:
        chain.ops.append(add)
        (chain.residual,) = others
    limit = rewriter.only_reader(chain.last.output(), "relu", "clip_by_scalar")
    if limit is not None:
        relu = limit.type == "relu"
        chain.low = 0.0 if relu else limit.attrs["floating_min"]
        chain.high = inf if relu else limit.attrs["floating_max"]
        chain.ops.append(limit)
    return chain


SMALLER = ("max_pool_2d", "avg_pool_2d", "onednn_reorder")
"""Ops whose results are not larger than their inputs."""


def _bound_of(rewriter: KernelRewriter, value: Value, bounds: Mapping[Value, Value]) -> list[Value]:
    """Return the bound of a value's magnitudes, if a convolution computes it."""
    while (maker := rewriter.graph.ops[value.op]).type in SMALLER and value not in bounds:
        value = maker.inputs[0]
    return [bounds[value]] if value in bounds else []


def _pack(rewriter: KernelRewriter, conv: Op, bounds: dict[Value, Value]) -> None:
    """Replace a convolution by one with packed weights, if a primitive packs them.

    Args:
        bounds: the bounds that earlier convolutions compute, by their results.
    """
    x, filters, *bias = conv.inputs
    chain, weights = chain_after(rewriter, conv), rewriter.type_of(filters)
    attrs: dict[str, AttrValue] = {key: conv.attrs[key] for key in GEOMETRY}
    attrs |= {
        "math": conv.attrs.get("math", ""), "low": chain.low, "high": chain.high,
        "filters": weights.shape, "bias": bool(bias), "residual": chain.residual is not None,
        "image": rewriter.type_of(x).shape, "result": rewriter.type_of(conv.output()).shape,
    }  # fmt: skip
    size = packed_size(attrs, weights)
    if size is None:
        return
    residual = () if chain.residual is None else (chain.residual,)
    known = _bound_of(rewriter, x, bounds)
    others = [v for value in residual for v in _bound_of(rewriter, value, bounds)]
    attrs |= {"bounded": bool(known), "residual_bounded": bool(others)}
    name = rewriter.unique_name(f"{conv.name}/packed")
    pack = Op(name, PACK, (filters, *bias), Attrs({**attrs, "size": size}), conv.placement)
    types = (tensor_type((size,), weights.dtype), tensor_type((2,), float32))
    inputs = (x, pack.output(), pack.output(1), *bias, *residual, *known, *others)
    rewriter.before(conv).add(pack, types)
    made = (rewriter.type_of(conv.output()), tensor_type((1,), float32))
    last = rewriter.replace(chain.last, like_op(chain.last, PRODUCT, attrs, inputs), made)
    bounds[last.output()] = last.output(1)
    for op in chain.ops[:-1]:
        rewriter.drop(op)
