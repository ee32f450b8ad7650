"""The ops of bodies in place of loops and branches, for devices that have no kernels for these.

A loop becomes the ops of each position.  A branch becomes the ops of both bodies, and selections of
the results; since the gradient of a branch is a branch, too, what the other body computes reaches
no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flow_core.ir.graph import Graph, Op
from flow_core.ops.build import Maker, Sym
from flow_core.ops.control.bodies import Body, add_body
from flow_core.ops.control.scan import positions
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.bodies import BRANCHES, LOOPS
from flow_core.passes.rewriting.decomposition import Parts, decompose, has_kernel, with_sbp


@dataclass(frozen=True)
class InlineBodies:
    """A pass that replaces loops and branches for which the device type has no kernel."""

    name: str = "inline_bodies"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without such ops; those that bodies contain are replaced next."""
        while True:
            found = [op for op in graph.ops.values() if op.type in _RULES]
            missing = [op for op in found if not has_kernel(graph, context, op)]
            if not missing:
                return graph
            rules = {op.name: _inlined for op in missing}
            graph = decompose(graph, context, rules, required=True)


def _inlined(maker: Maker, op: Op) -> Parts:
    found = _RULES[op.type](maker, op)
    return [with_sbp(y, sbp) for y, sbp in zip(found, op.sbp or (None,) * len(found), strict=True)]


def _results(maker: Maker, op: Op, body: Body, inputs: Sequence[Sym], part: str) -> Sequence[Sym]:
    """Add the ops of a body.

    Random ops that a gradient computes again are those that the loop or branch has made.
    """
    first = f"{op.attrs['draws_as'] or op.name}/{part}"
    own = f"{op.name}/{part}"
    values = add_body(
        maker.emitter, body, [x.value for x in inputs], maker.placement, f"{own}/", f"{first}/",
        maker.line,
    )  # fmt: skip
    return [Sym(maker, value) for value in values]


def _loop(maker: Maker, op: Op) -> Parts:
    inputs = [Sym(maker, value) for value in op.inputs]
    carries, stop = op.attrs["carries"], op.attrs["carries"] + op.attrs["sequences"]
    length, values = op.attrs["length"], inputs[:carries]
    elements = [_elements(x, length) for x in inputs[carries:stop]]
    rows: dict[int, Sequence[Sym]] = {}
    for t in positions(length, op.attrs["reverse"]):
        given = (*values, *(x[t] for x in elements), *inputs[stop:])
        results = _results(maker, op, op.attrs["body"], given, str(t))
        values, rows[t] = list(results[:carries]), results[carries:]
    types = maker.emitter.builder.types[op.name][carries:]
    if not length:
        attrs = [{"shape": t.shape, "dtype": t.dtype.name, "value": 0} for t in types]
        return [*values, *(maker.one("constant", **a) for a in attrs)]
    columns = zip(*(rows[t] for t in range(length)), strict=True)
    return [*values, *map(_stacked, columns)]


def _elements(x: Sym, length: int) -> Sequence[Sym]:
    if length == 0:
        return ()
    rows = x.maker.all("split", x, axis=0, sizes=(1,) * length) if length > 1 else [x]
    return [x.maker.one("squeeze", row, axes=(0,)) for row in rows]


def _stacked(rows: Sequence[Sym]) -> Sym:
    parts = [x.maker.one("expand_dims", x, axis=0) for x in rows]
    return parts[0].maker.one("concat", *parts, axis=0) if len(parts) > 1 else parts[0]


def _branch(maker: Maker, op: Op) -> Parts:
    on, *inputs = (Sym(maker, value) for value in op.inputs)
    taken = maker.one("scalar_logical_not_equal", on, operand=0.0)
    pair = (_results(maker, op, op.attrs[name], inputs, name) for name in ("then", "otherwise"))
    return [_selected(taken, x, y) for x, y in zip(*pair, strict=True)]


def _selected(taken: Sym, x: Sym, y: Sym) -> Sym:
    found = x.maker.one("where", taken, x, y)
    if found.shape == x.shape:
        return found
    return x.maker.one("reshape", found, shape=x.shape)


_RULES: Mapping[str, Callable[[Maker, Op], Parts]] = {
    **dict.fromkeys(LOOPS, _loop),
    **dict.fromkeys(BRANCHES, _branch),
}
