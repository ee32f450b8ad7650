"""Joins the updates of small variables: one launch for all of one rule.

An update of a bias is done in less time than it takes to ask for it.  What is joined waits for the
last of its gradients, which lie in memory until then: they are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flow_core.ir.graph import Attrs, AttrValue, Graph, Op, Value
from flow_core.ir.update_rules import COMMON, DIFF, MODEL, RATE
from flow_core.plugins.specs import KernelSpec, OpSpec
from flow_core.rewriting.editor import Editor, edit
from flow_onednn.ops import JOINED, MOST_ROWS, Joined

SMALL = 1 << 14
"""Elements up to which a variable is small: loops over so many use one thread."""
BY_TYPE: Mapping[str, Joined] = {row.rule.type: row for row in JOINED}


@dataclass(frozen=True)
class JoinUpdates:
    """The pass.

    Attributes:
        kernels: ours, by op.
        devices: device types whose ops run on the CPU.
    """

    kernels: Mapping[str, Sequence[KernelSpec]]
    devices: tuple[str, ...] = ("cpu",)
    name: str = "onednn_join"

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph with one update for several variables."""
        specs: Mapping[str, OpSpec] = context.specs  # type: ignore[attr-defined]  # PassContext
        groups = self._groups(graph, specs)
        if not groups:
            return graph
        editor = edit(graph, self.kernels)
        done = [_join(editor, ops) for group in groups for ops in _cut(group)]
        return editor.finish() if any(done) else graph

    def _groups(self, graph: Graph, specs: Mapping[str, OpSpec]) -> list[list[Op]]:
        """Updates alike but for their variables, of variables that nothing else overwrites."""
        written = Counter(_overwritten(graph, specs))
        named = {name for op in graph.ops.values() for name in op.control}
        groups: dict[object, list[Op]] = {}
        for type_ in BY_TYPE:
            for op in graph.of_type(type_):
                here = op.placement.device_type in self.devices and op.name not in named
                states = [v for i, v in enumerate(op.inputs) if i in specs[type_].mutates]
                if here and _is_small(graph, op) and all(written[v] == 1 for v in states):
                    groups.setdefault(_alike(op), []).append(op)
        return [ops for ops in groups.values() if len(ops) > 1]


def _overwritten(graph: Graph, specs: Mapping[str, OpSpec]) -> Iterator[Value]:
    """What ops overwrite, once for each of them; what a view is of, for views of it, too."""
    for op in graph.ops.values():
        for i in specs[op.type].mutates:
            value = op.inputs[i] if i < len(op.inputs) else None
            while value is not None:
                yield value
                maker = graph.ops[value.op]
                alias = specs[maker.type].alias
                value = None if alias is None else maker.inputs[alias]


def _is_small(graph: Graph, op: Op) -> bool:
    """A variable of few elements, all float32; updates that may be left out have an integer."""
    row, types = BY_TYPE[op.type], graph.input_types(op)
    floats = (t for i, t in enumerate(types) if not (row.rule.step and i == RATE + 1))
    variable = graph.ops[op.inputs[MODEL].op].type == "variable"
    return (
        variable
        and 0 < types[MODEL].size <= SMALL
        and all(t.dtype.name == "float32" for t in floats)
    )


def _parts(op: Op) -> tuple[tuple[Value, ...], tuple[Value, ...], tuple[Value, ...]]:
    """What an update has in common with others, its own row, and the factor of its gradient."""
    row = BY_TYPE[op.type]
    first = RATE + 1 + row.rule.step
    end = first + row.row - 2
    common = op.inputs[RATE:first]
    return common, (op.inputs[DIFF], op.inputs[MODEL], *op.inputs[first:end]), op.inputs[end:]


def _alike(op: Op) -> object:
    common, _, factor = _parts(op)
    return op.type, op.placement, op.attrs, common, factor


def _cut(ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
    """As many as one op takes."""
    for first in range(0, len(ops), MOST_ROWS):
        yield ops[first : first + MOST_ROWS]


def _join(editor: Editor, ops: Sequence[Op]) -> bool:
    """Puts one op in the place of the last of some, under its name."""
    last, row = ops[-1], BY_TYPE[ops[0].type]
    (rate, *step), _, factor = _parts(last)
    attrs: dict[str, AttrValue] = {k: last.attrs[k] for k in (*COMMON, *row.rule.attrs)}
    inputs = (rate, *(factor or (rate,)), *step, *(v for op in ops for v in _parts(op)[1]))
    control = tuple(dict.fromkeys(name for op in ops for name in op.control))
    joined = replace(
        last, type=row.type, inputs=inputs, attrs=Attrs({**attrs, "scaled": bool(factor)}),
        control=control,
    )  # fmt: skip
    if len(ops) < 2 or not editor.accepts(joined, ()):
        return False
    for op in ops[:-1]:
        del editor.ops[op.name]
    editor.add(joined, (), last)
    return True
