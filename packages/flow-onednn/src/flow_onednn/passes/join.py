"""Join the updates of small variables, so that one launch does all updates by one rule.

The update of a small variable, such as a bias, takes less time than its launch.  A joined update
waits for the last one of its gradients.  The gradients stay in memory until then, but are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flow_core.authoring.pass_api import KernelRewriter, PassContext
from flow_core.authoring.specs import Attrs, AttrValue, Graph, KernelSpec, Op, OpSpec, Value
from flow_core.authoring.update_rules import COMMON, DIFF, MODEL, RATE
from flow_onednn.update_references import JOINED, MOST_ROWS, Joined

SMALL = 1 << 14
"""Maximum number of elements of a small variable; loops over so few elements use one thread."""
BY_TYPE: Mapping[str, Joined] = {row.rule.type: row for row in JOINED}


@dataclass(frozen=True)
class JoinUpdates:
    """The pass that joins updates of small variables."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_join"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph, in which one update op can update several variables."""
        groups = self._groups(graph, context.specs)
        if not groups:
            return graph
        rewriter = KernelRewriter(graph, self.kernels)
        for group in groups:
            for ops in _cut(group):
                _join(rewriter, ops)
        return rewriter.finish()

    def _groups(self, graph: Graph, specs: Mapping[str, OpSpec]) -> list[list[Op]]:
        """Group updates that differ only in their variables, which no other op overwrites."""
        written = Counter(_overwritten(graph, specs))
        named = {name for op in graph.ops.values() for name in op.control}
        groups: dict[object, list[Op]] = {}
        for type_ in BY_TYPE:
            for op in graph.of_type(type_):
                is_candidate = op.placement.device_type in self.devices and op.name not in named
                states = [v for i, v in enumerate(op.inputs) if i in specs[type_].mutates]
                if is_candidate and _is_small(graph, op) and all(written[v] == 1 for v in states):
                    groups.setdefault(_alike(op), []).append(op)
        return [ops for ops in groups.values() if len(ops) > 1]


def _overwritten(graph: Graph, specs: Mapping[str, OpSpec]) -> Iterator[Value]:
    """Yield the values that each op overwrites; for a view, also the values that it views."""
    for op in graph.ops.values():
        for i in specs[op.type].mutates:
            value = op.inputs[i] if i < len(op.inputs) else None
            while value is not None:
                yield value
                maker = graph.ops[value.op]
                alias = specs[maker.type].alias
                value = None if alias is None else maker.inputs[alias]


def _is_small(graph: Graph, op: Op) -> bool:
    """Return whether a variable is small and all inputs are float32, so none is ``skip_if``."""
    row, types = BY_TYPE[op.type], graph.input_types(op)
    floats = (t for i, t in enumerate(types) if not (row.rule.step and i == RATE + 1))
    variable = graph.ops[op.inputs[MODEL].op].type == "variable"
    return (
        variable
        and 0 < types[MODEL].size <= SMALL
        and all(t.dtype.name == "float32" for t in floats)
    )


def _parts(op: Op) -> tuple[tuple[Value, ...], tuple[Value, ...], tuple[Value, ...]]:
    """Return the inputs that updates can share, the row of this update, and the gradient factor."""
    row = BY_TYPE[op.type]
    first = RATE + 1 + row.rule.step
    end = first + row.row - 2
    common = op.inputs[RATE:first]
    return common, (op.inputs[MODEL], op.inputs[DIFF], *op.inputs[first:end]), op.inputs[end:]


def _alike(op: Op) -> object:
    common, _, factor = _parts(op)
    return op.type, op.placement, op.attrs, common, factor


def _cut(ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
    """Split updates into chunks of as many variables as one op supports."""
    for first in range(0, len(ops), MOST_ROWS):
        yield ops[first : first + MOST_ROWS]


def _join(rewriter: KernelRewriter, ops: Sequence[Op]) -> None:
    """Replace several updates by one op that has the position and the name of the last update."""
    last, row = ops[-1], BY_TYPE[ops[0].type]
    (rate, *step), _, factor = _parts(last)
    attrs: dict[str, AttrValue] = {k: last.attrs[k] for k in (*COMMON, *row.rule.attrs)}
    inputs = (rate, *(factor or (rate,)), *step, *(v for op in ops for v in _parts(op)[1]))
    control = tuple(dict.fromkeys(name for op in ops for name in op.control))
    joined = replace(
        last, type=row.type, inputs=inputs, attrs=Attrs({**attrs, "scaled": bool(factor)}),
        control=control,
    )  # fmt: skip
    if len(ops) > 1 and rewriter.replace_if_accepted(last, joined, ()):
        for op in ops[:-1]:
            rewriter.drop(op)
