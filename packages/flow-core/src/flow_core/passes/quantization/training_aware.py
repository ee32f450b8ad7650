"""Quantization-aware training: round the operands and results of int8 kernels to int8 grids.

A grid is the set of values that int8 represents with a scale and a zero point.  As in OneFlow, the
ops in `INT8` are those that would compute in int8; each convolution is fused with the ops of
`CHAIN` that follow it, and reshapes pass values through.  The inputs and results of these ops are
rounded by ``fake_quantization``.  The grid of a weight spans the weight's own range.  The grid of a
convolution's bias has the product of the input's scale and the weight's scale as its scale.  The
grids of all other values span moving averages of minimum and maximum, which training updates.  The
gradient of rounding is defined as the identity; therefore this pass runs before the backward graph
is constructed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flow_core.base.dtypes import float32
from flow_core.base.errors import ConfigError
from flow_core.ir.graph import NO_ATTRS, AttrValue, Graph, Op, Value
from flow_core.ops.build import Emitter
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter

INT8 = frozenset(("add_n", "matmul", "batch_matmul", "conv2d", "avg_pool_2d", "max_pool_2d"))
CHAIN = ("bias_add", "normalization", "relu")
"""Ops that are fused with a convolution, in this order, if each fused op has only one reader."""

PASSING = frozenset(("reshape", "identity", "parallel_cast", "cast_to_mirrored"))
"""Ops whose output has the same values as their input."""

Grid = tuple[Value, Value]
Settings = Mapping[str, AttrValue]

OBSERVER = "-observer"
STATE: Settings = {"initializer": ("constant", 0), "trainable": False}


@dataclass(frozen=True)
class QuantizationAware:
    """A pass that inserts fake quantization, and observers that compute scales and zero points."""

    step: str | None  # name of the variable that counts the steps; None in jobs that do not train
    # Whether the zero point is zero; otherwise the grid spans the range from minimum to maximum.
    symmetric: bool = True
    per_channel: bool = False  # whether each row of a weight has its own grid
    momentum: float = 0.95  # weight of the old moving average when a batch updates the average
    # The step after which moving averages are frozen; required if the job uses moving averages.
    stop_after: int | None = None
    name: str = "quantization_aware"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph in which readers of quantized values read rounded values.

        Results of the job are rounded, too.  Existing values keep their names.
        """
        return _Rewrite(self, graph, context).graph()


class _Rewrite:
    """The rewriting of one graph."""

    def __init__(self, options: QuantizationAware, graph: Graph, context: PassContext) -> None:
        self._options, self._graph, self._specs = options, graph, context.specs
        self._rewriter = Rewriter(graph)
        self._chains = {op.name: self._chain(op) for op in graph.ops.values() if self._is_int8(op)}
        self._in_chain = {name: first for first, ops in self._chains.items() for name in ops}
        self._made = {Value(ops[-1], 0) for ops in self._chains.values()}
        self._emitter = Emitter(self._rewriter, context.specs)
        self._rounded: dict[Value, Value] = {}
        self._grids: dict[Value, Grid] = {}

    def _is_int8(self, op: Op) -> bool:
        sum_of_two = op.type == "broadcast_add" and len({*self._graph.input_types(op)}) == 1
        return op.type in INT8 or sum_of_two

    def _chain(self, op: Op) -> list[str]:
        """Return the names of an op and of the ops fused with it."""
        names = [op.name]
        following = iter(CHAIN if op.type == "conv2d" else ())
        for reader in self._followers(op):
            if not any(reader.type == kind for kind in following):
                break
            names.append(reader.name)
        return names

    def _followers(self, op: Op) -> Iterator[Op]:
        """Yield the only reader of an op's first output, the only reader of that op, and so on."""
        while True:
            readers = self._rewriter.readers(op.output())
            if len(readers) != 1 or readers[0].inputs[0] != op.output():
                return
            op = readers[0]
            yield op

    def graph(self) -> Graph:
        """Return the rewritten graph, or the same one if no op would compute in int8."""
        ops, rewriter = self._graph.ops, self._rewriter
        if not self._chains:
            return self._graph
        if self._options.step is not None:
            rewriter.before(next(iter(ops.values()))).move(ops[self._options.step])
        for op in ops.values():
            rewriter.before(op)
            inputs = tuple([self._read(op, v) for v in op.inputs])
            if inputs != op.inputs:
                rewriter.replace(op, op.with_inputs(inputs))
        rewriter.at_end()
        results = [self._round(v) if v in self._made else v for v in self._graph.results]
        rewriter.results = tuple(results)
        return rewriter.finish()

    def _read(self, reader: Op, value: Value) -> Value:
        """Return the value that an op must read in place of ``value``."""
        if reader.type == "normalization":  # it is fused with its convolution
            return value
        if value in self._made:
            return self._round(value)
        known = value.op in self._in_chain or self._source(value) in self._made
        if reader.name not in self._in_chain or known:
            return value
        if reader.type == "bias_add":
            return self._round_bias(reader, value)
        return self._round(value)

    def _source(self, value: Value) -> Value:
        """Return the value from which reshapes and identities made a value."""
        while (op := self._graph.ops[value.op]).type in PASSING:
            value = op.inputs[0]
        return value

    def _round(self, value: Value) -> Value:
        if self._graph.type_of(value).dtype is not float32:
            return value
        if value not in self._rounded:
            self._rounded[value] = self._fake(value, self._grid(value))
        return self._rounded[value]

    def _round_bias(self, reader: Op, bias: Value) -> Value:
        if self._graph.type_of(bias).dtype is not float32:
            return bias
        conv = self._graph.ops[self._in_chain[reader.name]]
        (x, _), (w, _) = (self._grid(self._rounded_source(v)) for v in conv.inputs[:2])
        scale = self._emit("broadcast_mul", bias, "-mul-bias", [x, w])
        zero = self._variable(bias, "-zp", self._rewriter.type_of(scale).shape[0])
        return self._fake(bias, (scale, zero))

    def _rounded_source(self, value: Value) -> Value:
        source = self._source(value)
        return source if source in self._made else value

    def _grid(self, value: Value) -> Grid:
        """Return the scale and the zero point of a value."""
        if value not in self._grids:
            weight = self._graph.ops[self._source(value).op].type == "variable"
            self._grids[value] = self._range(value) if weight else self._moving(value)
        return self._grids[value]

    def _range(self, value: Value) -> Grid:
        whole = not self._options.per_channel
        attrs = {"quantization_scheme": self._scheme, "per_layer_quantization": whole}
        return self._both("min_max_observer", value, [value], attrs)

    def _moving(self, value: Value) -> Grid:
        options = self._options
        if options.stop_after is None:
            raise ConfigError(
                f"quantization-aware training of {value}",
                at=self._graph.lines.get(value.op),
                found="no qat.moving_min_max_stop_update_after_iters",
                allowed="the number of the last step that updates the moving averages of ranges",
                hint="call function_config.qat.moving_min_max_stop_update_after_iters(1000)",
            )
        attrs = {
            "training": options.step is not None, "momentum": options.momentum,
            "stop_update_after_iters": options.stop_after, "quantization_scheme": self._scheme,
        }  # fmt: skip
        ends = [self._variable(value, f"{OBSERVER}-fake-quant-moving-{e}") for e in ("max", "min")]
        inputs = [value, self._step(value), *ends]
        return self._both("moving_average_min_max_observer", value, inputs, attrs)

    @property
    def _scheme(self) -> str:
        return "symmetric" if self._options.symmetric else "affine"

    def _both(self, op_type: str, of: Value, inputs: list[Value], attrs: Settings) -> Grid:
        scale = self._emit(op_type, of, OBSERVER, inputs, attrs)
        return scale, Value(scale.op, 1)

    def _fake(self, value: Value, grid: Grid) -> Value:
        return self._emit(
            "fake_quantization", value, "", [value, *grid], {"quantization_scheme": self._scheme}
        )

    def _step(self, like: Value) -> Value:
        """Return the step counter, or a constant in jobs that do not train, which ignore it."""
        if self._options.step is not None:
            return Value(self._options.step, 0)
        return self._emit(
            "constant", like, "-step", [], {"value": 0, "dtype": "int64", "shape": (1,)}
        )

    def _variable(self, of: Value, suffix: str, size: int = 1) -> Value:
        return self._emit(
            "variable", of, suffix, [], {**STATE, "shape": (size,), "dtype": "float32"}
        )

    def _emit(
        self, op_type: str, of: Value, suffix: str, inputs: list[Value], attrs: Settings = NO_ATTRS
    ) -> Value:
        """Add an op, named after the value ``of`` as in OneFlow, and return its first output."""
        op = self._graph.ops[of.op]
        return self._emitter.emit(
            op_type,
            inputs,
            attrs,
            placement=self._specs[op.type].output_placement(op.placement, of.index),
            name=f"{of.op}-{self._output_name(of)}-fake-quant{suffix}",
            line=self._graph.lines.get(of.op),
        )[0]

    def _output_name(self, value: Value) -> str:
        op_type = self._graph.ops[value.op].type
        if op_type in ("variable", "input"):
            return "out"
        outputs = self._specs[op_type].outputs
        starred = outputs[-1].endswith("*")
        at, number = (len(outputs) - 1, value.index) if starred else (value.index, 0)
        return f"{outputs[at].rstrip('*')}_{number}"
