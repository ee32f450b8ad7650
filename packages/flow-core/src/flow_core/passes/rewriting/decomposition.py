"""The decomposition of ops into several other ops, and helpers for decomposition rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from flow_core.base.dtypes import DType
from flow_core.ir.graph import AttrValue, Graph, Op
from flow_core.ops.build import Emitter, Maker, Sym
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.rewriter import Rewriter
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import NdSbp

Parts = Sequence[Sym]
"""The values that replace an op's outputs."""
Rule = Callable[[Maker, Op], Parts]
"""A decomposition rule: emits the ops that replace one op."""


def decompose(
    graph: Graph, context: PassContext, rules: Mapping[str, Rule], required: bool = False
) -> Graph:
    """Return the graph with ops replaced by the ops that their rules emit.

    Args:
        context: the context of the pass.
        rules: the rule for each op to replace, by the op's name.
        required: whether to replace an op that has a kernel even if some op that would replace it
            has none.
    """
    changed, made = _decomposed(graph, context.specs, rules)
    kept = set() if required else set(_better_kept(graph, changed, context, made))
    if not kept:
        return changed
    rest = {name: rule for name, rule in rules.items() if name not in kept}
    return _decomposed(graph, context.specs, rest)[0]


def _better_kept(
    graph: Graph, changed: Graph, context: PassContext, made: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the names of ops that have a kernel and whose replacements do not all have one."""
    for name, parts in made.items():
        complete = all(has_kernel(changed, context, changed.ops[part]) for part in parts)
        if not complete and has_kernel(graph, context, graph.ops[name]):
            yield name


def has_kernel(graph: Graph, context: PassContext, op: Op) -> bool:
    """Return whether a kernel of its device type accepts an op of a graph."""
    return context.has_kernel(op, graph.input_types(op), graph.types[op.name])


def _decomposed(
    graph: Graph, specs: Mapping[str, OpSpec], rules: Mapping[str, Rule]
) -> tuple[Graph, dict[str, list[str]]]:
    """Return the graph with ops replaced by rules, and the names of each op's replacements."""
    rewriter, made = Rewriter(graph), dict[str, list[str]]()
    emitter = Emitter(rewriter, specs)
    for op in [graph.ops[name] for name in graph.ops if name in rules]:
        maker = Maker(emitter, op.placement, op.name, graph.lines.get(op.name))
        rewriter.before(op)
        before = len(rewriter.ops)
        found = rules[op.name](maker, rewriter.resolved(op))
        made[op.name] = list(islice(rewriter.ops, before, None))
        for index, sym in enumerate(found):
            rewriter.replace_value(op.output(index), sym.value)
        rewriter.drop(op, found[0].value.op if found else next(reversed(rewriter.ops)))
    return rewriter.finish(), made


def cast_to(value: Sym, dtype: DType) -> Sym:
    """Return the value cast to an element type, or the value itself if it has that type."""
    return value if value.dtype is dtype else value.maker.one("cast", value, dtype=dtype.name)


def with_sbp(value: Sym, sbp: NdSbp | None) -> Sym:
    """Return the value with a requested SBP, or the value itself if ``sbp`` is None."""
    return value if sbp is None else emit_with_sbp(value.maker, sbp, "identity", value, name="cast")


def emit_with_sbp(
    maker: Maker, sbp: NdSbp, type_: str, *inputs: Sym, name: str = "", **attrs: AttrValue
) -> Sym:
    """Emit an op whose output has a requested SBP, and return the output."""
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
