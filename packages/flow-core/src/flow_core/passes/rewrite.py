"""Decompose ops into several others; helpers for the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flow_core.base.dtypes import DType
from flow_core.ir.graph import AttrValue, Graph, Op
from flow_core.ir.rewriter import Rewriter
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import NdSbp

Parts = Sequence[Sym]
"""Replacements of an op's outputs."""
Rule = Callable[[Maker, Op], Parts]
"""Emit the ops that replace one op."""


def take_apart(graph: Graph, specs: Mapping[str, OpSpec], rules: Mapping[str, Rule]) -> Graph:
    """Return the graph with ops replaced by the ops that the rules of their types emit."""
    rewriter = Rewriter(graph)
    emitter = Emitter(rewriter, specs)
    for op in [graph.ops[name] for name in graph.ops if name in rules]:
        maker = Maker(emitter, op.placement, op.name, graph.lines.get(op.name))
        rewriter.before(op)
        found = rules[op.name](maker, rewriter.resolved(op))
        for index, sym in enumerate(found):
            rewriter.replace_value(op.output(index), sym.value)
        rewriter.drop(op, found[0].value.op if found else next(reversed(rewriter.ops)))
    return rewriter.finish()


def as_type(value: Sym, dtype: DType) -> Sym:
    """Return the value in an element type."""
    return value if value.dtype is dtype else value.maker.one("cast", value, dtype=dtype.name)


def constrain(value: Sym, sbp: NdSbp | None) -> Sym:
    """Return the value with a requested SBP; the value itself for None."""
    return value if sbp is None else asked(value.maker, sbp, "identity", value, name="cast")


def asked(
    maker: Maker, sbp: NdSbp, type_: str, *inputs: Sym, name: str = "", **attrs: AttrValue
) -> Sym:
    """Emit an op with a requested SBP of its output, and return the output."""
    emitter = maker.emitter
    (found,) = emitter.emit(
        type_,
        [x.value for x in inputs],
        attrs,
        placement=maker.placement,
        name=emitter.builder.unique_name(f"{maker.prefix}/{name or type_}"),
        line=maker.line,
        sbp=(sbp,),
    )
    return Sym(maker, found)
