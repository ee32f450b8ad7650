"""Computes products in a half type, and what lies between them; the rest stays float32.

Ops come in three lists, as in OneFlow, with the ops of their gradients.  *White* ones are always
computed in the half type.  *Gray* ones are where they lie on a path from a white op to another one.
*Clear* ones, which only move numbers, also follow a neighbour.  *Trailing* ones are sums over
gradients, of biases and of the parameters of normalisations: they take what comes in the half
type as it is, and sum in float32.  Everything else, such as losses, other sums and updates of
variables, computes in float32: variables keep all their bits, and are cast where products read
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flow_core.base.dtypes import DType, as_dtype, float32
from flow_core.base.errors import InferenceError
from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value, tensor_type
from flow_core.passes.base import PassContext
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
    "softmax_grad", "gelu", "gelu_grad", "normalization", "normalization_grad",
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
"""Inputs that stay float32: statistics and the parameters beside them."""

LISTED = WHITE | GRAY | CLEAR | TRAILING

Names = set[str]


@dataclass(frozen=True)
class MixedPrecision:
    """Inserts the casts.

    Attributes:
        half: the half type.
        backward: names of the ops that compute gradients; sums trail among them alone.
    """

    half: str = "float16"
    backward: frozenset[str] = frozenset()
    name: str = "mixed_precision"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph with casts, and the types of what they reach changed."""
        return _Rewrite(graph, context, as_dtype(self.half), self.backward).graph()


def white_ops(
    graph: Graph, able: Callable[[Op], bool], backward: frozenset[str] = frozenset()
) -> Names:
    """Names of the ops that compute in the half type, of those that are able to.

    Args:
        graph: the ops.
        able: whether an op can be computed in it.
        backward: names of those that compute gradients.
    """
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


def _readers(graph: Graph) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {name: [] for name in graph.ops}
    for op in graph.ops.values():
        for value in op.inputs:
            readers[value.op].append(op.name)
    return readers


def _reach(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> Names:
    """What can be reached from some ops by steps, themselves included."""
    found, waiting = set(start), list(start)
    while waiting:
        for name in step(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


class _Rewrite:
    """One graph's casts."""

    def __init__(
        self, graph: Graph, context: PassContext, half: DType, backward: frozenset[str]
    ) -> None:
        self._graph, self._specs, self._half = graph, context.specs, half
        self._white = white_ops(graph, self._able, backward)
        self._ops: dict[str, Op] = {}
        self._types: dict[str, tuple[TensorType, ...]] = {}
        self._lines = dict(graph.lines)
        self._casts: dict[tuple[Value, DType], Value] = {}

    def _able(self, op: Op) -> bool:
        """Whether an op listed has a float32 result and takes half inputs."""
        if op.type not in LISTED or op.type not in self._specs:
            return False
        types = [self._graph.type_of(v) for v in op.inputs]
        if all(t.dtype is not float32 for t in (*types, *self._graph.types[op.name])):
            return False
        return self._inferred(op, self._narrowed(op, types)) is not None

    def _narrowed(self, op: Op, types: Iterable[TensorType]) -> list[TensorType]:
        """The types of an op's inputs where it computes in the half type."""
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
        """The rewritten graph; itself where nothing is white."""
        if not self._white:
            return self._graph
        for op in self._graph.ops.values():
            self._put(op)
        results = tuple([self._as(v, self._graph.type_of(v).dtype) for v in self._graph.results])
        return replace(
            self._graph, ops=self._ops, types=self._types, results=results, lines=self._lines
        )

    def _put(self, op: Op) -> None:
        before = [self._graph.type_of(v) for v in op.inputs]
        wanted = self._narrowed(op, before) if op.name in self._white else before
        inputs = tuple([self._as(v, t.dtype) for v, t in zip(op.inputs, wanted, strict=True)])
        self._ops[op.name] = op.with_inputs(inputs)
        types = self._inferred(op, wanted) if op.name in self._white else None
        self._types[op.name] = types or self._graph.types[op.name]

    def _as(self, value: Value, dtype: DType) -> Value:
        """A value in an element type, cast where it has another one; one cast for all readers."""
        type_ = self._types[value.op][value.index]
        if type_.dtype is dtype:
            return value
        if (value, dtype) not in self._casts:
            self._casts[value, dtype] = self._cast(value, tensor_type(type_.shape, dtype))
        return self._casts[value, dtype]

    def _cast(self, value: Value, type_: TensorType) -> Value:
        name = next(n for n in self._names(value, type_.dtype) if n not in self._graph.ops)
        placement = self._specs[self._ops[value.op].type].output_placement(
            self._ops[value.op].placement, value.index
        )
        self._ops[name] = Op(name, "cast", (value,), Attrs({"dtype": type_.dtype.name}), placement)
        self._types[name] = (type_,)
        if value.op in self._lines:
            self._lines[name] = self._lines[value.op]
        return Value(name, 0)

    @staticmethod
    def _names(value: Value, dtype: DType) -> Iterator[str]:
        """Names for a cast, the plain one first."""
        stem = f"{value.op}/{dtype.name}" + (f"_{value.index}" if value.index else "")
        yield stem
        for number in range(1, 1 << 30):
            yield f"{stem}_{number}"
