"""One op of a job, compiled and run by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import Attrs, Graph, Op, Origin, TensorType, Value, tensor_type
from flow_core.observe.isolated_run import IsolatedRun, simulate_graph


class SingleOp:
    """A graph of one op, whose inputs are fed values and the variables that the op overwrites.

    Args:
        session: the session with the kernels.
        options: how the op is compiled.
        op: the op, with the placement on which it is to run.
        types: the types of its outputs.
        origin: the op of which it is a copy, on which random numbers depend.
    """

    def __init__(
        self,
        session: Session,
        options: CompileOptions,
        op: Op,
        types: tuple[TensorType, ...],
        origin: Origin,
    ) -> None:
        self.session, self.options, self.op, self.types = session, options, op, types
        self.spec, self.origin = session.registry.ops[op.type], origin
        self.mutated = [i for i in self.spec.mutates if i < len(op.inputs)]
        self.runs: dict[tuple[TensorType, ...], IsolatedRun] = {}

    def run(self, arrays: Sequence[Array], step: int) -> list[Any]:
        """Return the outputs of the op, then the variables that the op overwrote."""
        types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
        values = {f"in{i}": arrays[i] for i in self.mutated}
        if types not in self.runs:
            self.runs[types] = self._compiled(types, values)
        run = self.runs[types]
        run.variables.assign(values)
        fed = [x for i, x in enumerate(arrays) if i not in self.mutated]
        results = run.run(fed, step)
        after = run.variables.values()
        return [*results.values(), *(after[name] for name in values)]

    def _compiled(self, types: tuple[TensorType, ...], values: dict[str, Array]) -> IsolatedRun:
        ops: dict[str, Op] = {}
        on_host = self.session.registry.host_numbers
        for i in range(len(types)):
            kind = "variable" if i in self.mutated else "input"
            placement = self.spec.input_placement(self.op.placement, i, on_host)
            ops[f"in{i}"] = Op(f"in{i}", kind, (), Attrs(), placement)
        read = {name: (type_,) for name, type_ in zip(ops, types, strict=True)}
        op = replace(self.op, inputs=tuple(Value(name, 0) for name in ops), control=())
        graph = Graph(
            {**ops, op.name: op}, {**read, op.name: self.types}, origins={op.name: self.origin}
        )
        fed = [name for name in ops if name not in values]
        return simulate_graph(self.session, graph, fed, values, self.options, {})
