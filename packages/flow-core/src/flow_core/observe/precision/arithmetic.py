"""A step of a logical graph, op by op: in float64, or with the kernels of given types.

In float64, the references of ops compute.  Ops that draw random numbers, read data, or have no
reference run with their kernels, on inputs rounded to the types of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import Graph, Op, Value
from flow_core.observe.isolated_run import SingleOp
from flow_core.observe.rounding import as_type, floating, widened

Compute = Callable[[Graph, Op, list[Any], int], list[Any]]
"""Returns the outputs of an op, then the variables that it overwrote, given its inputs and the
number of the step."""

LEAVES = ("input", "variable")
MEMORY = 2**28
"""The bytes of results of ops that are kept for the next runs."""


@dataclass(slots=True)
class Step:
    """The values of a step."""

    values: dict[Value, Any] = field(default_factory=dict)  # the value of each output of an op
    # The values of the variables that ops overwrite, after the step.
    after: dict[str, Any] = field(default_factory=dict)


def needed(graph: Graph, also: Sequence[Value]) -> list[Op]:
    """Return the ops on which results, effects and other values depend, in graph order."""
    found, waiting = set[str](), [*(v.op for v in (*graph.results, *also)), *graph.effects]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(v.op for v in graph.ops[name].inputs)
    return [op for name, op in graph.ops.items() if name in found]


class Arithmetic:
    """Computes the ops of graphs on one device, one by one."""

    def __init__(self, session: Session, options: CompileOptions) -> None:
        self.session, self.options = session, options
        self._ops: dict[Any, SingleOp] = {}
        self._known: dict[Any, tuple[list[Any], list[Any]]] = {}
        self._bytes = 0

    def run(
        self,
        graph: Graph,
        ops: Sequence[Op],  # the ops to run, in graph order
        leaves: Mapping[str, Array],  # the fed arrays, and the values of variables
        compute: Compute,
        step: int,
    ) -> Step:
        """Run a step."""
        found = Step()
        for op in ops:
            if op.type in LEAVES:
                found.values[op.output()] = leaves[op.name]
                continue
            results = compute(graph, op, [found.values[v] for v in op.inputs], step)
            count = len(graph.types[op.name])
            found.values |= {Value(op.name, i): results[i] for i in range(count)}
            spec = self.session.registry.ops[op.type]
            changed = [i for i in spec.mutates if i < len(op.inputs)]
            names = [op.inputs[i].op for i in changed]
            found.after |= dict(zip(names, results[count:], strict=True))
        return found

    def kernel(self, graph: Graph, op: Op, arrays: Sequence[Any], step: int) -> list[Any]:
        """Return what the kernel of an op computes; results for the same arrays are kept."""
        types = graph.types[op.name]
        key = (op.name, op.attrs, types, tuple(x.dtype for x in arrays))
        call = (key, step, tuple(map(id, arrays)))
        if call not in self._known:
            if key not in self._ops:
                origin = graph.origin(op.name)
                self._ops[key] = SingleOp(self.session, self.options, op, types, origin)
            results = self._ops[key].run(arrays, step)
            self._bytes += sum(x.nbytes for x in results if isinstance(x, np.ndarray))
            if self._bytes > MEMORY:
                self._known.clear()
                self._bytes = 0
            self._known[call] = list(arrays), results  # an id is that of an array while it lives
        return self._known[call][1]

    def exact(self, graph: Graph, op: Op, arrays: Sequence[Any], step: int) -> list[Any]:
        """Return what an op computes in float64."""
        spec = self.session.registry.ops[op.type]
        if spec.reference is None or spec.random or spec.host or not any(map(floating, arrays)):
            types = graph.input_types(op)
            narrow = [as_type(x, t.dtype.numpy) for x, t in zip(arrays, types, strict=True)]
            return [widened(x) for x in self.kernel(graph, op, narrow, step)]
        attrs = dict(op.attrs)
        if attrs.get("dtype") is not None and as_dtype(attrs["dtype"]).is_floating:
            attrs["dtype"] = "float64"
        with np.errstate(all="ignore"):
            results = spec.reference(*arrays, **attrs)
        rows = results if isinstance(results, tuple) else (results,)
        return [widened(np.asarray(x)) for x in rows]


def distance(found: Any, exact: Any) -> float:
    """Return how far an array is from the exact one.

    This is the largest difference relative to the largest exact element; of whole numbers, the
    fraction of elements that differ.

    >>> distance(np.array([1.0, 2.5]), np.array([1.0, 2.0])), distance(np.arange(4), np.arange(4))
    (0.25, 0.0)
    """
    if not floating(exact):
        whole = isinstance(exact, np.ndarray) and exact.dtype != object
        return float(np.mean(found != exact)) if whole and exact.size else 0.0
    a, b = widened(found), widened(exact)
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return float("inf")
    error = float(np.abs(a - b)[finite].max(initial=0.0))
    largest = float(np.abs(b[finite]).max(initial=0.0))
    return error / largest if largest else float("inf") if error else 0.0
