"""Post-training quantization: round the operands of products and convolutions to int8.

The operands of matrix products and convolutions whose weights are variables are rounded by pairs of
``quantize_linear`` and ``dequantize_linear``, from which backends make int8 kernels.  Grids of
activations span the ranges of a calibration; without negative numbers they are those of uint8, else
those of int8, symmetric around zero.  Each output channel of a weight has a grid of its own, which
follows from the variable.  The second operand of a residual addition is rounded, too, and a maximum
pooling between two kernels pools rounded numbers, so that int8 kernels read and write few bytes.
Batch normalizations are folded into convolutions first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flow_core.base.dtypes import float32
from flow_core.base.errors import ConfigError
from flow_core.ir.graph import Graph, Op, Value
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.passes.base import PassContext
from flow_core.passes.fold_norms import FoldNorms
from flow_core.passes.rewriting.derived_values import closure
from flow_core.passes.rewriting.rewriter import Rewriter

PRODUCTS = ("conv2d", "matmul")
POOL = "max_pool_2d"
RESIDUAL = ("broadcast_add", "add_n")
LEAST = 1e-30
"""Least magnitude from which a scale is made: channels of zeros have no scale of 0."""

Ranges = Mapping[str, tuple[float, float]]
"""Lowest and highest number of values, by the name of the op and the number of its output."""


def name_of(value: Value) -> str:
    """Return the name of a value in `Ranges`, such as ``"relu:0"``."""
    return f"{value.op}:{value.index}"


def observed(graph: Graph, context: PassContext) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph whose further results are the ranges to calibrate, and their names.

    The results are the lowest and the highest number of each value in turn.
    """
    graph = _folded(graph, context)
    rewriter, results = Rewriter(graph), list(graph.results)
    values = tuple(dict.fromkeys(_Sites.of(graph, context).sources.values()))
    for value in values:
        maker = _maker(rewriter, context, value)
        axes = tuple(range(len(graph.type_of(value).shape)))
        for op in ("reduce_min", "reduce_max"):
            end = maker.one(op, Sym(maker, value), axis=axes, keepdims=False)
            results.append(maker.one("reshape", end, shape=(1,)).value)
    rewriter.results = tuple(results)
    return rewriter.finish(), tuple(map(name_of, values))


@dataclass(frozen=True)
class PostTraining:
    """The pass that rounds operands to the grids of calibrated ranges."""

    ranges: Ranges
    name: str = "post_training_quantization"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph whose products and convolutions read rounded operands.

        Raises `ConfigError` if a value has no range.
        """
        graph = _folded(graph, context)
        rewriter, sites = Rewriter(graph), _Sites.of(graph, context)
        rounded = {
            value: self._round(rewriter, context, value, source)
            for value, source in sites.sources.items()
        }
        for name, position in sites.readers.items():
            op = graph.ops[name]
            inputs = list(op.inputs)
            inputs[position] = rounded[inputs[position]]
            if op.type in PRODUCTS:
                inputs[1] = _rounded_weights(rewriter, context, op)
            rewriter.replace(op, op.with_inputs(tuple(inputs)))
        return rewriter.finish()

    def _round(
        self, rewriter: Rewriter, context: PassContext, value: Value, source: Value
    ) -> Value:
        maker, (low, high) = _maker(rewriter, context, value), self._range(rewriter.graph, source)
        dtype, scale = ("uint8", high / 255) if low >= 0 else ("int8", max(-low, high) / 127)
        grid = (
            maker.one("constant", value=scale or 1.0, dtype="float32", shape=(1,)),
            maker.one("constant", value=0, dtype=dtype, shape=(1,)),
        )
        levels = maker.one("quantize_linear", Sym(maker, value), *grid)
        return maker.one("dequantize_linear", levels, *grid).value

    def _range(self, graph: Graph, value: Value) -> tuple[float, float]:
        found = self.ranges.get(name_of(value))
        if found is None:
            raise ConfigError(
                f"quantization of {name_of(value)!r}",
                at=graph.lines.get(value.op),
                found=f"ranges of {len(self.ranges)} other values",
                allowed="ranges that were calibrated for the same job",
                hint="call flow.quantization.calibrate(job, samples) again",
            )
        return found


def _rounded_weights(rewriter: Rewriter, context: PassContext, op: Op) -> Value:
    """Return the weights of an op, rounded to one grid per output channel."""
    weights = op.inputs[1]
    maker = _maker(rewriter, context, weights)
    shape = rewriter.type_of(weights).shape
    channel = 0 if op.attrs.get("transpose_b", True) else 1
    others = tuple(i for i in range(len(shape)) if i != channel)
    w = Sym(maker, weights)
    most = maker.one("reduce_max", maker.one("abs", w), axis=others, keepdims=False)
    most = maker.one("clip_by_scalar_min", most, floating_min=LEAST, integral_min=0)
    grid = (most * (1 / 127), maker.one("constant", value=0, dtype="int8", shape=(shape[channel],)))
    levels = maker.one("quantize_linear", w, *grid, axis=channel)
    return maker.one("dequantize_linear", levels, *grid, axis=channel).value


def _folded(graph: Graph, context: PassContext) -> Graph:
    for device in sorted({op.placement.device_type for op in graph.ops.values()}):
        graph = FoldNorms(device).apply(graph, context)
    return graph


def _maker(rewriter: Rewriter, context: PassContext, value: Value) -> Maker:
    """Return a `Maker` that adds ops after the op that makes a value."""
    op = rewriter.graph.ops[value.op]
    placement = context.specs[op.type].output_placement(op.placement, value.index)
    line = rewriter.graph.lines.get(op.name)
    return Maker(Emitter(rewriter.after(op), context.specs), placement, op.name, line)


@dataclass(frozen=True, slots=True)
class _Sites:
    """What is rounded in a graph.

    Attributes:
        sources: for each rounded value, the value whose range determines its grid.
        readers: the position of the rounded input of each op that reads one, by name of the op.
    """

    sources: dict[Value, Value] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, context: PassContext) -> _Sites:
        """Find the products and convolutions of a graph, and what they read."""
        found, rewriter = cls(), Rewriter(graph)
        for op in _products(graph, context):
            x = op.inputs[0]
            maker = graph.ops[x.op]
            source = maker.inputs[0] if maker.type == POOL else x
            found._add(op, 0, x, source)
            if source != x:
                found._add(maker, 0, source, source)
            add, position = _residual(rewriter, op)
            if add is not None and add.name not in found.readers:
                found._add(add, position, add.inputs[position], add.inputs[position])
        return found

    def _add(self, reader: Op, position: int, value: Value, source: Value) -> None:
        self.readers[reader.name] = position
        self.sources.setdefault(value, source)


def _products(graph: Graph, context: PassContext) -> Iterator[Op]:
    """Yield the float32 products and convolutions whose weights follow from variables."""
    variables = frozenset(op.name for op in graph.of_type("variable"))
    constant = closure(graph, context.specs, variables)
    for op in graph.ops.values():
        if op.type not in PRODUCTS:
            continue
        x, w = op.inputs[:2]
        floats = all(graph.type_of(v).dtype is float32 for v in (x, w))
        plain = op.attrs.get("alpha", 1.0) == 1.0 and not op.attrs.get("transpose_a", False)
        matrices = op.type != "matmul" or len(graph.type_of(x).shape) == 2
        if floats and plain and matrices and w.op in constant and x.op not in constant:
            yield op


def _residual(rewriter: Rewriter, op: Op) -> tuple[Op | None, int]:
    """Return what adds a tensor to the result of an op and its bias, and the tensor's position."""
    bias = rewriter.only_reader(op.output(), "bias_add")
    made = op.output() if bias is None else bias.output()
    add = rewriter.only_reader(made, *RESIDUAL)
    if add is None or len(add.inputs) != 2 or len({*add.inputs}) != 2:
        return None, 0
    position = 1 - add.inputs.index(made)
    alike = rewriter.type_of(add.inputs[position]) == rewriter.type_of(made)
    return (add, position) if alike else (None, 0)
