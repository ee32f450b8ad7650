"""Plain ops in place of means and recurrent layers for which a device type has no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.ops.math.reduce import mean_count
from flow_core.ops.nn.recurrent import order
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.decomposition import (
    Parts,
    Rule,
    cast_to,
    decompose,
    has_kernel,
    with_sbp,
)
from flow_core.passes.rewriting.rewriter import Rewriter, like_op
from flow_core.plugins.missing_kernels import HOST

MEAN = "reduce_mean"


@dataclass(frozen=True, slots=True)
class PlainMeans:
    """A pass that replaces means of floating-point numbers whose device type has no kernel."""

    name: str = "plain_means"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without such means; they sum in the accumulation type."""
        missing = [op for op in graph.of_type(MEAN) if _lacks_kernel(graph, context, op)]
        if not missing:
            return graph
        rewriter = Rewriter(graph)
        for op in missing:
            emitter = Emitter(rewriter.before(op), context.specs)
            maker = Maker(emitter, op.placement, op.name, graph.lines.get(op.name))
            x = Sym(maker, op.inputs[0])
            wide = cast_to(x, x.dtype.accumulate)
            axes = {"axis": op.attrs["axis"], "keepdims": op.attrs["keepdims"]}
            factor = 1.0 / max(1, mean_count(op.attrs, x.shape))
            mean = maker.one("reduce_sum", wide, **axes) * factor
            last = like_op(op, "cast", {"dtype": x.dtype.name}, [mean.value])
            rewriter.replace(op, last, graph.types[op.name])
        return rewriter.finish()


def _lacks_kernel(graph: Graph, context: PassContext, op: Op) -> bool:
    if op.placement.device_type == HOST:
        return False
    return graph.type_of(op.inputs[0]).dtype.is_floating and not has_kernel(graph, context, op)


@dataclass(frozen=True)
class UnrollRecurrent:
    """A pass that replaces recurrent layers, and their gradients, by the ops of all positions.

    It runs before the other passes, so that these see the products.
    """

    name: str = "unroll_recurrent"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without layers for which the device type has no kernel."""
        found = [op for op in graph.ops.values() if op.type in _RULES]
        rules = {op.name: _unrolled for op in found if not has_kernel(graph, context, op)}
        return decompose(graph, context, rules) if rules else graph


def _unrolled(maker: Maker, op: Op) -> Parts:
    found = _RULES[op.type](maker, op)
    return [with_sbp(y, sbp) for y, sbp in zip(found, op.sbp or (None,) * len(found), strict=True)]


def _positions(x: Sym) -> Sequence[Sym]:
    """Return the values of each position, shape (batch, features)."""
    rows = x.maker.all("split", x, axis=1, sizes=(1,) * x.shape[1])
    return [x.maker.one("squeeze", row, axes=(1,)) for row in rows]


def _parts(x: Sym, count: int) -> Sequence[Sym]:
    return x.maker.all("split", x, axis=1, sizes=(x.shape[1] // count,) * count)


def _joined(parts: Sequence[Sym]) -> Sym:
    return parts[0].maker.one("concat", *parts, axis=1)


def _stacked(rows: Sequence[Sym]) -> Sym:
    return _joined([x.maker.one("expand_dims", x, axis=1) for x in rows])


def _by_place(found: dict[int, Sequence[Sym]]) -> Parts:
    """Return the sequences of the results of each position."""
    return [_stacked(rows) for rows in zip(*(found[t] for t in range(len(found))), strict=True)]


def _times(x: Sym, weight: Sym, transpose: bool) -> Sym:
    return x.maker.one("matmul", x, weight, transpose_a=False, transpose_b=transpose)


def _sum(first: Sym, *others: Sym) -> Sym:
    for other in others:
        first = first + other
    return first


def _sigmoid_slope(y: Sym) -> Sym:
    return y * (1 - y)


def _tanh_slope(y: Sym) -> Sym:
    return 1 - y * y


def _lstm(maker: Maker, op: Op) -> Parts:
    parts, recurrent, h, c = (Sym(maker, v) for v in op.inputs)
    xs, found = _positions(parts), dict[int, Sequence[Sym]]()
    for t, _ in order(len(xs), op.attrs["reverse"]):
        i, f, g, o = _parts(xs[t] + _times(h, recurrent, True), 4)
        i, f, o = (maker.one("sigmoid", x) for x in (i, f, o))
        g = maker.one("tanh", g)
        c = f * c + i * g
        h = o * maker.one("tanh", c)
        found[t] = _joined([i, f, g, o]), h, c
    return _by_place(found)


def _gru(maker: Maker, op: Op) -> Parts:
    parts, recurrent, h, *bias = (Sym(maker, v) for v in op.inputs)
    xs, found = _positions(parts), dict[int, Sequence[Sym]]()
    for t, _ in order(len(xs), op.attrs["reverse"]):
        own = _parts(_sum(_times(h, recurrent, True), *bias), 3)
        r, z, n = _parts(xs[t], 3)
        r, z = (maker.one("sigmoid", x + y) for x, y in ((r, own[0]), (z, own[1])))
        n = maker.one("tanh", n + r * own[2])
        h = n + z * (h - n)
        found[t] = _joined([r, z, n]), h, own[2]
    return _by_place(found)


def _lstm_grad(maker: Maker, op: Op) -> Parts:
    gates, recurrent, first, *more = (Sym(maker, v) for v in op.inputs)
    a, memory, dout, *others = map(_positions, (gates, *more))
    dmemory, dgates = others[:1], others[1:]
    later, dc, found = list[Sym](), list[Sym](), dict[int, Sequence[Sym]]()
    for t, before in reversed(order(len(a), op.attrs["reverse"])):
        i, f, g, o = _parts(a[t], 4)
        earlier = first if before is None else memory[before]
        tanh, dh = maker.one("tanh", memory[t]), _sum(dout[t], *later)
        down = _sum(dh * o * _tanh_slope(tanh), *dc, *(x[t] for x in dmemory))
        d = _sum(_joined([down * g, down * earlier, down * i, dh * tanh]), *(x[t] for x in dgates))
        slopes = [_sigmoid_slope(i), _sigmoid_slope(f), _tanh_slope(g), _sigmoid_slope(o)]
        d = d * _joined(slopes)
        later, dc, found[t] = [_times(d, recurrent, False)], [down * f], (d,)
    return *_by_place(found), *later, *dc


def _gru_grad(maker: Maker, op: Op) -> Parts:
    gates, recurrent, first, *more = (Sym(maker, v) for v in op.inputs)
    a, memory, out, dout, *others = map(_positions, (gates, *more))
    dmemory, dgates = others[:1], others[1:]
    later, found = list[Sym](), dict[int, Sequence[Sym]]()
    for t, before in reversed(order(len(a), op.attrs["reverse"])):
        r, z, n = _parts(a[t], 3)
        own = [_parts(x[t], 3) for x in dgates]
        earlier, dh = first if before is None else out[before], _sum(dout[t], *later)
        dn = _sum(dh * (1 - z), *(x[2] for x in own)) * _tanh_slope(n)
        dr = _sum(dn * memory[t], *(x[0] for x in own)) * _sigmoid_slope(r)
        dz = _sum(dh * (earlier - n), *(x[1] for x in own)) * _sigmoid_slope(z)
        down = _joined([dr, dz, _sum(dn * r, *(x[t] for x in dmemory))])
        found[t] = _joined([dr, dz, dn]), down
        later = [dh * z + _times(down, recurrent, False)]
    return *_by_place(found), *later


_RULES: dict[str, Rule] = {
    "lstm": _lstm, "lstm_grad": _lstm_grad, "gru": _gru, "gru_grad": _gru_grad,
}  # fmt: skip
