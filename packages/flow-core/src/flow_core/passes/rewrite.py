"""Replacing values by equal values, and ops by several ones, throughout a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flow_core.base.dtypes import DType
from flow_core.ir.graph import AttrValue, Graph, GraphBuilder, Op, Value, rebuild
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import NdSbp

Parts = Sequence[Sym]
"""What stands for the outputs of an op that was taken apart."""
Rule = Callable[[Maker, Op], Parts]
"""Emits the ops that stand for one."""


def substitute(graph: Graph, same: Mapping[Value, Value], dropped: set[str]) -> Graph:
    """The graph with values replaced and the dropped ops taken out."""
    ops = [redirect(op, same, dropped) for op in graph.ops.values() if op.name not in dropped]
    results = tuple(same.get(v, v) for v in graph.results)
    return rebuild(graph, ops, results=results)


def redirect(op: Op, same: Mapping[Value, Value], dropped: set[str]) -> Op:
    """An op whose replaced inputs are exchanged."""
    if any(v in same for v in op.inputs):
        op = op.with_inputs(tuple([same.get(v, v) for v in op.inputs]))
    if op.control and any(c in dropped for c in op.control):
        op = replace(op, control=tuple(c for c in op.control if c not in dropped))
    return op


def take_apart(graph: Graph, specs: Mapping[str, OpSpec], rules: Mapping[str, Rule]) -> Graph:
    """The graph with ops replaced by what the rules under their names emit."""
    builder = GraphBuilder(reserved=graph.ops.keys() - rules.keys())
    emitter = Emitter(builder, specs)
    same: dict[Value, Value] = {}
    last: dict[str, str] = {}
    for original in graph.ops.values():
        op = _after_last(redirect(original, same, set()), last)
        line = graph.lines.get(op.name)
        if op.name not in rules:
            effect = op.name in graph.effects
            origin = graph.origins.get(op.name)
            builder.add(op, graph.types[op.name], line=line, effect=effect, origin=origin)
            continue
        found = rules[op.name](Maker(emitter, op.placement, op.name, line), op)
        same.update({Value(op.name, i): sym.value for i, sym in enumerate(found)})
        last[op.name] = found[0].value.op if found else next(reversed(builder.ops))
    builder.results = tuple(same.get(v, v) for v in graph.results)
    return builder.build()


def _after_last(op: Op, last: Mapping[str, str]) -> Op:
    """The op with control edges from ops that were taken apart moved to their last part."""
    if not any(name in last for name in op.control):
        return op
    return replace(op, control=tuple(last.get(name, name) for name in op.control))


def as_type(value: Sym, dtype: DType) -> Sym:
    """The value in an element type."""
    return value if value.dtype is dtype else value.maker.one("cast", value, dtype=dtype.name)


def constrain(value: Sym, sbp: NdSbp | None) -> Sym:
    """The value in a requested layout, if one is requested."""
    return value if sbp is None else asked(value.maker, sbp, "identity", value, name="cast")


def asked(
    maker: Maker, sbp: NdSbp, type_: str, *inputs: Sym, name: str = "", **attrs: AttrValue
) -> Sym:
    """The output of an op that gives it in a requested layout."""
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
