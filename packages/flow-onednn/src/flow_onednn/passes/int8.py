"""Compute quantized convolutions and products in int8, outside of training.

An op whose operands are dequantized reads their levels.  What follows becomes a part of it, as for
`pack_convs`: a bias, the addition of a dequantized residual, relu, and the quantization of the
result.  A maximum pooling of levels needs no other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from flow_core.authoring.layouts import LAST, TO_LAST
from flow_core.authoring.pass_api import (
    KernelRewriter,
    PassContext,
    Rewriter,
    constants_of_variables,
    like_op,
)
from flow_core.authoring.specs import Attrs, AttrValue, Graph, KernelSpec, Op, Value, tensor_type
from flow_core.base.dtypes import as_dtype, float32, int8, int32
from flow_onednn.kernels.convolution.int8 import PACK, PRODUCT, packed_size
from flow_onednn.ops import GEOMETRY
from flow_onednn.passes.pack_convs import CONV, Chain, chain_after

PRODUCTS = (CONV, "matmul", "onednn_matmul")
POOL, INT8_POOL, REORDER = "max_pool_2d", "onednn_int8_pool", "onednn_reorder"
QUANTIZE, DEQUANTIZE, QUANTIZE_LAST = "quantize_linear", "dequantize_linear", "onednn_quantize"
TOP = {"int8": 127, "uint8": 255}


@dataclass(frozen=True)
class Int8:
    """The pass that computes in int8."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_int8"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with int8 kernels, if no step changes the weights."""
        if not graph.of_type(DEQUANTIZE):
            return graph
        once = constants_of_variables(graph, context.specs)
        work = _Work(KernelRewriter(graph, self.kernels), once)
        for op in graph.ops.values():
            if op.placement.device_type in self.devices and work.rewriter.is_untouched(op):
                if op.type == POOL:
                    work.pool(op)
                elif op.type in PRODUCTS:
                    work.product(op)
        return _without_unread(work.rewriter.finish())


def _without_unread(graph: Graph) -> Graph:
    """Return the graph without levels and dequantized numbers that nothing reads."""
    rewriter, unread = Rewriter(graph), set(graph.ops)
    kept = {value.op for value in graph.results}
    for op in reversed([*graph.ops.values()]):
        if op.type in (QUANTIZE, DEQUANTIZE, REORDER) and op.name in unread and op.name not in kept:
            rewriter.drop(op)
        else:
            unread.difference_update(value.op for value in op.inputs)
    return rewriter.finish()


@dataclass(frozen=True, slots=True)
class _Levels:
    """The levels of a dequantized value."""

    value: Value
    scale: Value
    zero: int  # the zero point


@dataclass(slots=True)
class _Work:
    """A graph during the conversion to int8."""

    rewriter: KernelRewriter
    once: frozenset[str]  # the names of the ops that do not run in each step
    # Levels in the layout of a reorder, by the reorder's result.
    reordered: dict[Value, Value] = field(default_factory=dict)

    def pool(self, op: Op) -> None:
        """Pool levels, if the result is quantized to the same grid."""
        x = self._levels(op.inputs[0])
        end = self._quantized(op.output())
        if x is None or end is None:
            return
        grids = [*map(self._number, end.inputs[1:]), self._number(x.scale), x.zero]
        if None in grids or grids[:2] != grids[2:]:
            return
        types = (self.rewriter.type_of(end.output()),)
        alike = types[0].dtype is self.rewriter.type_of(x.value).dtype
        if not alike or op.attrs["data_format"] != LAST:
            return
        attrs = {**op.attrs, "space": types[0].shape[1:3]}
        if self.rewriter.replace_if_accepted(
            end, like_op(end, INT8_POOL, attrs, (x.value,)), types
        ):
            self.rewriter.drop(op)

    def product(self, op: Op) -> None:
        """Replace a convolution or product whose operands are dequantized."""
        x, w = self._levels(op.inputs[0]), self._weights(op)
        if x is None or w is None or not all(v.op in self.once for v in op.inputs[2:]):
            return
        chain = self._chain(op)
        end = self._quantized(chain.last.output())
        if end is not None and not self._fits(chain, end):
            end = None
        if end is None and chain.high < inf and chain.residual is not None:
            chain = Chain([op])
            end = self._quantized(op.output())
        residual = None if chain.residual is None else self._levels(chain.residual)
        attrs = self._attrs(op, chain, x, residual, end)
        size = packed_size(attrs)
        if size is None:
            return
        name = self.rewriter.unique_name(f"{op.name}/int8")
        scales = [v.scale for v in (residual,) if v is not None]
        scales += [] if end is None else [end.inputs[1]]
        inputs = (w.value, w.scale, x.scale, *op.inputs[2:], *scales)
        pack = Op(name, PACK, inputs, Attrs({**attrs, "size": size}), op.placement)
        vector = tensor_type(attrs["result"][-1:], float32)
        one, zeros = tensor_type((1,), float32), tensor_type((2,), int32)
        types = (tensor_type((size,), int8), vector, vector, one, zeros)
        self.rewriter.before(op).add(pack, types)
        self._replace(chain, end, attrs, x, pack, residual)

    def _replace(
        self,
        chain: Chain,
        end: Op | None,
        attrs: Mapping[str, AttrValue],
        x: _Levels,
        pack: Op,
        residual: _Levels | None,
    ) -> None:
        last = chain.last if end is None else end
        shape = self.rewriter.type_of(last.output()).shape
        inputs = [x.value, *(pack.output(i) for i in range(5))]
        inputs += [] if residual is None else [residual.value]
        made = like_op(last, PRODUCT, {**attrs, "shape": shape}, inputs)
        self.rewriter.replace(last, made, (tensor_type(shape, as_dtype(attrs["result_type"])),))
        for gone in chain.ops:
            if gone is not last:
                self.rewriter.drop(gone)

    def _chain(self, op: Op) -> Chain:
        """Return the ops after a product that the primitive can compute."""
        chain = chain_after(self.rewriter, op)
        fits = chain.residual is None or self._levels(chain.residual) is not None
        return chain if fits and chain.low in (0.0, -inf) else Chain([op])

    def _fits(self, chain: Chain, end: Op) -> bool:
        """Return whether the ends of a quantized result's type are within the chain's limits."""
        scale, zero = map(self._number, end.inputs[1:])
        if chain.high == inf or scale is None or zero is None:
            return chain.high == inf
        top = TOP[self.rewriter.type_of(end.output()).dtype.name]
        return scale * (top - zero) <= chain.high * (1 + 1e-6)

    def _attrs(
        self, op: Op, chain: Chain, x: _Levels, residual: _Levels | None, end: Op | None
    ) -> dict[str, Any]:
        type_of = self.rewriter.type_of
        result_type = "float32" if end is None else type_of(end.output()).dtype.name
        zero = 0 if end is None else int(self._number(end.inputs[2]) or 0)
        activated = op.attrs.get("activation") == "relu" or chain.low == 0.0
        shapes = _of_conv if op.type == CONV else _of_matmul
        weights, result = type_of(op.inputs[1]).shape, type_of(op.output()).shape
        return {
            **shapes(op, type_of(op.inputs[0]).shape, weights, result),
            "relu": activated and (result_type != "uint8" or zero > 0),
            "high": chain.high if end is None else inf,
            "image_type": type_of(x.value).dtype.name, "result_type": result_type,
            "bias": len(op.inputs) > 2, "image_zero": x.zero, "result_zero": zero,
            "residual_zero": 0 if residual is None else residual.zero,
            "residual_type": "" if residual is None else type_of(residual.value).dtype.name,
        }  # fmt: skip

    # ------------------------------------------------------------------------------- patterns

    def _levels(self, value: Value) -> _Levels | None:
        """Return the levels of a dequantized value, in the value's layout."""
        maker = self.rewriter.graph.ops[value.op]
        if maker.type == REORDER:
            found = self._levels(maker.inputs[0])
            return None if found is None else replace(found, value=self._reorder(maker, found))
        if maker.type != DEQUANTIZE or maker.attrs["axis"] is not None:
            return None
        levels, scale, point = maker.inputs
        zero = self._number(point)
        known = zero is not None and scale.op in self.once
        return _Levels(levels, scale, int(zero or 0)) if known else None

    def _reorder(self, op: Op, levels: _Levels) -> Value:
        """Return levels in the layout to which an op reorders dequantized numbers."""
        rewriter = self.rewriter
        if op.output() not in self.reordered:
            type_ = tensor_type(
                rewriter.type_of(op.output()).shape, rewriter.type_of(levels.value).dtype
            )
            name = rewriter.unique_name(f"{op.name}/levels")
            source = rewriter.graph.ops[levels.value.op]
            if source.type == QUANTIZE and op.attrs["perm"] == TO_LAST and self._is_private(op):
                made = Op(name, QUANTIZE_LAST, source.inputs, Attrs(), op.placement)
            else:
                attrs = op.attrs.with_(reordered=type_.nbytes)
                made = Op(name, REORDER, (levels.value,), attrs, op.placement)
            self.reordered[op.output()] = rewriter.before(op).add(made, (type_,)).output()
        return self.reordered[op.output()]

    def _is_private(self, op: Op) -> bool:
        """Return whether a reorder is the only reader of numbers, and these of their levels."""
        maker = self.rewriter.graph.ops[op.inputs[0].op]
        read = (op.inputs[0], *maker.inputs[:1])
        return maker.type == DEQUANTIZE and all(
            len(self.rewriter.readers(v)) == 1 and not self.rewriter.is_result(v) for v in read
        )

    def _weights(self, op: Op) -> _Levels | None:
        """Return the levels of weights that have one grid, or one per filter."""
        maker = self.rewriter.graph.ops[op.inputs[1].op]
        if maker.type != DEQUANTIZE or maker.name not in self.once:
            return None
        levels, scale, zero = maker.inputs
        is_int8 = self.rewriter.type_of(levels).dtype is int8
        filters = 0 if op.type == CONV or op.attrs["transpose_b"] else 1
        plain = op.type == CONV or (op.attrs["alpha"] == 1.0 and not op.attrs["transpose_a"])
        matrices = op.type == CONV or len(self.rewriter.type_of(op.output()).shape) == 2
        fits = plain and matrices and op.attrs.get("activation", "") in ("", "relu")
        by_filter = maker.attrs["axis"] in (None, filters)
        usable = is_int8 and by_filter and fits and self._number(zero) == 0
        return _Levels(levels, scale, 0) if usable else None

    def _quantized(self, value: Value) -> Op | None:
        """Return the op that quantizes a value to one grid, if nothing else reads the value."""
        op = self.rewriter.only_reader(value, QUANTIZE)
        if op is None or op.attrs["axis"] is not None or op.inputs[1].op not in self.once:
            return None
        return op if self._number(op.inputs[2]) is not None else None

    def _number(self, value: Value) -> float | None:
        """Return the number of a constant of one number."""
        op = self.rewriter.graph.ops[value.op]
        while op.type == "reshape":
            op = self.rewriter.graph.ops[op.inputs[0].op]
        return float(op.attrs["value"]) if op.type == "constant" else None


Shape = tuple[int, ...]


def _of_conv(op: Op, x: Shape, weights: Shape, result: Shape) -> dict[str, Any]:
    """Return the attributes of a convolution."""
    geometry = {key: op.attrs[key] for key in GEOMETRY}
    return {**geometry, "transposed": False, "image": x, "result": result, "filters": weights}


def _of_matmul(op: Op, x: Shape, weights: Shape, result: Shape) -> dict[str, Any]:
    """Return the attributes of a matrix product as a convolution of one column of pixels."""
    rows, deep = x
    return {
        "kernel_size": (1, 1), "strides": (1, 1), "dilation_rate": (1, 1),
        "padding_before": (0, 0), "groups": 1, "weights_last": False,
        "transposed": not op.attrs["transpose_b"], "image": (1, rows, 1, deep),
        "result": (1, rows, 1, result[-1]), "filters": (result[-1], deep, 1, 1),
    }  # fmt: skip
