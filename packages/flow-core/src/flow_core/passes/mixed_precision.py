"""Mixed precision: products, and ops between products, use a half type; other ops use float32.

A half type is float16 or bfloat16.  As in OneFlow, lists divide the ops and the ops of their
gradients into groups.  *White* ops are always computed in the half type.  *Gray* ops are computed
in the half type if they are on a path from one white op to another.  *Clear* ops only move
numbers; they are treated like gray ops, and also take the half type if a neighbor has it.  Ops
with scalars beyond the half type are in float32.  Numbers that are added to others, and depend
neither on trained variables nor on products, such as an additive mask of -1e9, are clipped to half
of the range of float16: as infinities they would make a row that is masked throughout NaN.
*Trailing* ops sum gradients for biases and for the parameters of normalizations; they read half
inputs without a cast, and sum in float32.  All other ops, such as losses, other sums and updates of
variables, compute in float32.  Variables stay in float32 and are cast where products read them.
Jobs may name further ops to keep in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from flow_core.base.dtypes import DType, as_dtype, float16, float32
from flow_core.base.errors import InferenceError
from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value, tensor_type
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.bodies import with_bodies
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.plugins.specs import InferContext

WHITE = frozenset((
    "matmul", "batch_matmul", "conv1d", "conv2d", "conv3d", "deconv1d", "deconv2d", "deconv3d",
    "conv_data_grad", "conv_filter_grad", "amp_white_identity",
))  # fmt: skip
GRAY = frozenset((
    "add_n", "avg_pool_1d", "avg_pool_2d", "avg_pool_3d", "avg_pool_1d_grad", "avg_pool_2d_grad",
    "avg_pool_3d_grad", "bias_add", "multiply", "sigmoid", "sigmoid_grad", "tanh", "tanh_grad",
    "sqrt", "scalar_mul", "scalar_add", "broadcast_add", "broadcast_sub", "broadcast_mul",
    "broadcast_div", "layer_norm", "layer_norm_grad", "dropout", "dropout_grad", "softmax",
    "softmax_grad", "gelu", "gelu_grad", "normalization", "normalization_grad", "reduce_mean",
    "clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max", "clip_by_scalar_grad",
    "clip_by_scalar_min_grad", "clip_by_scalar_max_grad",
))  # fmt: skip
CLEAR = frozenset((
    "gather", "max_pool_1d", "max_pool_2d", "max_pool_3d", "max_pool_1d_grad", "max_pool_2d_grad",
    "max_pool_3d_grad", "reshape", "reshape_like", "relu", "relu_grad", "transpose",
    "random_mask_like", "concat", "split_like", "pad", "pad_grad", "tril", "slice", "slice_grad",
    "fused_scale_tril", "identity", "flatten", "squeeze", "expand_dims", "cast_to_static_shape",
    "parallel_cast",
))  # fmt: skip
TRAILING = frozenset((
    "reduce_sum", "reduce_sum_like", "layer_norm_gamma_grad", "layer_norm_param_grad",
))  # fmt: skip
KEPT: Mapping[str, tuple[int, ...]] = {
    "normalization": (1, 2, 3, 4),
    "normalization_grad": (2, 3, 4),
    "layer_norm_grad": (2, 3),
    "layer_norm_gamma_grad": (2, 3),
}
"""Numbers of the inputs that stay in float32: statistics and normalization parameters."""

SUMS = ("add_n", "broadcast_add", "broadcast_sub")
LISTED = WHITE | GRAY | CLEAR | TRAILING

Names = set[str]


@dataclass(frozen=True)
class MixedPrecision:
    """A pass that inserts the casts to and from the half type."""

    half: str = "float16"  # name of the half type
    # Names of the ops that compute gradients; only these ops can be trailing.
    backward: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()  # names of ops that stay in float32; see `is_kept`
    name: str = "mixed_precision"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with casts, and with the types that result from the casts.

        The inputs and results of bodies keep their types.
        """

        def rewritten(part: Graph, backward: frozenset[str]) -> Graph:
            return _Rewrite(part, context, as_dtype(self.half), backward, self.kept).graph()

        def body(inner: Graph, op: Op) -> Graph:
            if is_kept(op.name, self.kept):
                return inner
            gradients = op.name in self.backward
            return rewritten(inner, frozenset(inner.ops) if gradients else frozenset())

        return with_bodies(rewritten(graph, self.backward), body)


def white_ops(
    graph: Graph, able: Callable[[Op], bool], backward: frozenset[str] = frozenset()
) -> Names:
    """Return the names of the ops that compute in the half type."""
    can = {op.name: op for op in graph.ops.values() if able(op)}
    readers = _readers(graph)
    white = {name for name, op in can.items() if op.type in WHITE}
    between = {name for name, op in can.items() if op.type in GRAY | CLEAR}
    producers = {name: [v.op for v in op.inputs] for name, op in graph.ops.items()}
    below = _reach(white, lambda n: (r for r in readers[n] if r in between))
    above = _reach(white, lambda n: (p for p in producers[n] if p in between))
    white |= below & above
    clear = {name for name, op in can.items() if op.type in CLEAR}
    white = _reach(white, lambda n: (r for r in readers[n] if r in clear))
    white = _reach(white, lambda n: (p for p in producers[n] if p in clear))
    trailing = (can[name] for name in backward & can.keys() if can[name].type in TRAILING)
    return white | {op.name for op in trailing if op.inputs[0].op in white}


def is_kept(name: str, kept: Collection[str]) -> bool:
    """Return whether an op is named, or made by a pass of an op that is named.

    The ops of a gradient have names of their own.

    >>> [is_kept(name, {"rnn"}) for name in ("rnn", "rnn/matmul_2", "rnn/grad/matmul", "rnn-2")]
    [True, True, False, False]
    """
    ends = (i for i, letter in enumerate(name) if letter == "/")
    return name in kept or any(
        name[:i] in kept and not name.startswith("/grad/", i) for i in ends if kept
    )


def _given(graph: Graph) -> Names:
    """Return the names of the ops that depend neither on trained variables nor on products."""
    found: Names = set()
    for op in graph.ops.values():
        trained = op.type == "variable" and op.attrs["trainable"]
        if not trained and op.type not in WHITE and all(v.op in found for v in op.inputs):
            found.add(op.name)
    return found


def _readers(graph: Graph) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {name: [] for name in graph.ops}
    for op in graph.ops.values():
        for value in op.inputs:
            readers[value.op].append(op.name)
    return readers


def _reach(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> Names:
    """Return the ops of ``start`` and all ops reachable from them by ``step``."""
    found, waiting = set(start), list(start)
    while waiting:
        for name in step(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


class _Rewrite:
    """The rewriting of one graph."""

    def __init__(
        self,
        graph: Graph,
        context: PassContext,
        half: DType,
        backward: frozenset[str],
        kept: frozenset[str],
    ) -> None:
        self._graph, self._specs, self._half = graph, context.specs, half
        self._context, self._kept = context, kept
        self._given = _given(graph) if half is float16 else set()
        self._white = white_ops(graph, self._able, backward)
        self._rewriter = Rewriter(graph)
        self._casts: dict[tuple[Value, DType], Value] = {}
        self._clipped: dict[Value, Value] = {}

    def _able(self, op: Op) -> bool:
        """Return whether an op is listed, reads or produces float32, and accepts half inputs.

        The op must also have a kernel for the half type, except for white ops: an error about a
        missing kernel tells the user more than a job that silently computes them in float32.
        """
        if op.type not in LISTED or op.type not in self._specs:
            return False
        if self._exceeds_half(op) or is_kept(op.name, self._kept):
            return False
        types = [self._graph.type_of(v) for v in op.inputs]
        if all(t.dtype is not float32 for t in (*types, *self._graph.types[op.name])):
            return False
        narrowed = self._narrowed(op, types)
        inferred = self._inferred(op, narrowed)
        if inferred is None:
            return False
        return op.type in WHITE or self._context.has_kernel(op, narrowed, inferred)

    def _exceeds_half(self, op: Op) -> bool:
        with np.errstate(over="ignore"):
            operand = np.asarray(op.attrs.get("operand", 0.0)).astype(self._half.numpy)
        return bool(np.isinf(operand))

    def _narrowed(self, op: Op, types: Iterable[TensorType]) -> list[TensorType]:
        """Return the input types that an op has if it computes in the half type."""
        kept = KEPT.get(op.type, ())
        return [
            tensor_type(t.shape, self._half) if t.dtype is float32 and i not in kept else t
            for i, t in enumerate(types)
        ]

    def _inferred(self, op: Op, types: Iterable[TensorType]) -> tuple[TensorType, ...] | None:
        spec, line = self._specs[op.type], self._graph.lines.get(op.name)
        try:
            return tuple(spec.infer(InferContext(op.name, op.type, tuple(types), op.attrs, line)))
        except InferenceError:
            return None

    def graph(self) -> Graph:
        """Return the rewritten graph, or the same one if no op is white."""
        if not self._white:
            return self._graph
        for op in self._graph.ops.values():
            self._retype(op)
        self._rewriter.at_end()
        results = [self._as(v, self._graph.type_of(v).dtype) for v in self._graph.results]
        self._rewriter.results = tuple(results)
        return self._rewriter.finish()

    def _retype(self, op: Op) -> None:
        before, white = [self._graph.type_of(v) for v in op.inputs], op.name in self._white
        wanted = self._narrowed(op, before) if white else before
        self._rewriter.before(op)
        read = self._within_range(op) if white and op.type in SUMS else op.inputs
        inputs = tuple([self._as(v, t.dtype) for v, t in zip(read, wanted, strict=True)])
        if white or inputs != op.inputs:
            types = self._inferred(op, wanted) if white else None
            self._rewriter.replace(op, op.with_inputs(inputs), types)

    def _within_range(self, op: Op) -> list[Value]:
        """Return the inputs of a sum, with clipped numbers in place of a mask."""
        given = [v.op in self._given for v in op.inputs]
        if all(given):
            return list(op.inputs)
        return [self._clip(v) if g else v for v, g in zip(op.inputs, given, strict=True)]

    def _clip(self, value: Value) -> Value:
        type_ = self._rewriter.type_of(value)
        if type_.dtype is not float32:
            return value
        if value not in self._clipped:
            maker, most = self._graph.ops[value.op], float(np.finfo(np.float16).max) / 2
            bounds = {"floating_min": -most, "floating_max": most}
            clip = Op(
                self._rewriter.unique_name(f"{value.op}/clip"),
                "clip_by_scalar",
                (value,),
                Attrs({**bounds, "integral_min": 0, "integral_max": 0}),
                self._specs[maker.type].output_placement(maker.placement, value.index),
            )
            if not self._context.has_kernel(clip, [type_], [type_]):
                return value
            line = self._graph.lines.get(value.op)
            self._clipped[value] = self._rewriter.add(clip, (type_,), line=line).output()
        return self._clipped[value]

    def _as(self, value: Value, dtype: DType) -> Value:
        """Return a value in an element type; all its readers share one cast, if one is needed."""
        type_ = self._rewriter.type_of(value)
        if type_.dtype is dtype:
            return value
        if (value, dtype) not in self._casts:
            self._casts[value, dtype] = self._cast(value, tensor_type(type_.shape, dtype))
        return self._casts[value, dtype]

    def _cast(self, value: Value, type_: TensorType) -> Value:
        stem = f"{value.op}/{type_.dtype.name}" + (f"_{value.index}" if value.index else "")
        maker = self._rewriter.ops.get(value.op) or self._graph.ops[value.op]
        cast = Op(
            self._rewriter.unique_name(stem),
            "cast",
            (value,),
            Attrs({"dtype": type_.dtype.name}),
            self._specs[maker.type].output_placement(maker.placement, value.index),
        )
        return self._rewriter.add(cast, (type_,), line=self._graph.lines.get(value.op)).output()
