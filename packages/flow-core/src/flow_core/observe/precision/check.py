"""``flow verify --precision``: a job in mixed precision, beside the same job in float64.

Both run on one device, from the same feeds and variables.  The pass of mixed precision rewrites the
graph as when the job is compiled; micro-batches and fused ops do not change what is computed in
which type, so the passes after it do not run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flow_core.compiler.pass_list import logical_pipeline
from flow_core.compiler.request import CompileRequest
from flow_core.frontend.config.function_config import FLOAT32_OPS, HALF, MIXED
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.function import AnyJob
from flow_core.ir.graph import Graph, Op, Value
from flow_core.ir.update_rules import BY_TYPE
from flow_core.observe.copies import overwritten_copies, with_copies
from flow_core.observe.feeds import draw_feeds, draw_variable
from flow_core.observe.oracle import on_one_device
from flow_core.observe.precision.arithmetic import (
    LEAVES,
    Arithmetic,
    Compute,
    Step,
    distance,
    needed,
)
from flow_core.observe.precision.report import OpError, Output, Precision
from flow_core.observe.precision.search import smallest_set
from flow_core.observe.rounding import as_type, widened
from flow_core.passes.base import PassContext
from flow_core.passes.mixed_precision import GRAY, TRAILING, WHITE, MixedPrecision

TRIALS = 4096
"""The largest number of sets of ops that are tried to prove that a set is the smallest one."""

WORK = 2**30
"""The largest number of elements that these trials compute; an op costs as much as OVERHEAD."""

OVERHEAD = 5000


def verify_precision(
    job: AnyJob,  # the job function; its session's variables are not changed
    half: str,
    *,
    # The allowed error of results, gradients and variables, relative to the largest element of
    # each.
    tolerance: float,
    steps: int = 1,
    seed: int = 0,  # seed of the random inputs and of the noise on constant weights
    progress: Callable[[str], object] = lambda _: None,
) -> Precision:
    """Compare a job in mixed precision with the job in float64."""
    return _Check(job, half, steps, seed).report(tolerance, progress)


class _Check:
    """The runs of a job in float64 and in mixed precision."""

    def __init__(self, job: AnyJob, half: str, steps: int, seed: int) -> None:
        self.job, self.half, self.steps = job, half, steps
        self.session, build = job.active_session(), copy.copy(job.prepare().build)
        build.config = build.config.copy()
        getattr(build.config, MIXED)(True)
        getattr(build.config, HALF)(half)
        self.named: Sequence[str] = build.config.get(FLOAT32_OPS) or ()
        request = compile_request(build, job.results, build.inputs)
        self.inputs = request.inputs
        self.graph, self.mixed, self.context = _before_the_pass(request)
        self.arithmetic = Arithmetic(self.session, request.options)
        rng = np.random.default_rng(seed)
        names = [op.name for op in self.graph.of_type("variable")]
        declared = self.session.declared
        self.variables = {name: draw_variable(declared[name.split("#")[0]], rng) for name in names}
        self.feeds = [
            dict(zip(self.inputs, draw_feeds(self.graph, self.inputs, rng), strict=True))
            for _ in range(steps)
        ]
        self.own = {v for v in build.variables if not build.forward or v in build.forward}
        self.exact = self._run(self.graph, self.arithmetic.exact, widened)
        self.single = self._trial(frozenset(self.candidates))
        self.outputs = self._outputs()

    # ------------------------------------------------------------------------------------- running

    def rewritten(self, kept: frozenset[str]) -> Graph:
        """Return the graph in mixed precision, with some further ops in float32."""
        kept = self.mixed.kept | kept
        return replace(self.mixed, kept=kept).apply(self.graph, self.context)

    @property
    def candidates(self) -> list[str]:
        """The ops that compute in the half type and do not only move numbers, in graph order."""
        after = self.rewritten(frozenset())
        arithmetic = WHITE | GRAY | TRAILING
        return [
            name
            for name, op in self.graph.ops.items()
            if op.type in arithmetic and after.types[name] != self.graph.types[name]
        ]

    def _run(
        self,
        graph: Graph,
        compute: Compute,
        convert: Callable[[Any], Any] = lambda array: array,
    ) -> list[Step]:
        ops, found = needed(graph, [v for row in _gradients(graph).values() for v in row]), []
        variables = {name: convert(array) for name, array in self.variables.items()}
        for step, feeds in enumerate(self.feeds):
            leaves = variables | {name: convert(array) for name, array in feeds.items()}
            done = self.arithmetic.run(graph, ops, leaves, compute, step)
            variables |= done.after
            found.append(done)
        return found

    def _trial(self, kept: frozenset[str]) -> tuple[Graph, list[Step]]:
        graph = self.rewritten(kept)
        return graph, self._run(graph, self._half)

    def _half(self, graph: Graph, op: Op, arrays: list[Any], step: int) -> list[Any]:
        """Compute an op with its kernel; data that a job reads is that of the float64 run."""
        spec = self.session.registry.ops[op.type]
        if spec.host and op.name in self.graph.ops:
            types, values = graph.types[op.name], self.exact[step].values
            return [as_type(values[Value(op.name, i)], t.dtype.numpy) for i, t in enumerate(types)]
        return self.arithmetic.kernel(graph, op, arrays, step)

    # ------------------------------------------------------------------------------------- errors

    def _pairs(self, graph: Graph, steps: Sequence[Step]) -> Iterator[tuple[str, str, Any, Any]]:
        """Yield the kind and name of each output, and its values in a run and in float64."""
        rows, wanted = _gradients(graph), _gradients(self.graph)
        for done, exact in zip(steps, self.exact, strict=True):
            for a, b in zip(graph.results, self.graph.results, strict=True):
                yield "result", b.op, done.values[a], exact.values[b]
            for name, values in rows.items():
                for a, b in zip(values, wanted[name], strict=True):
                    yield "gradient", name, done.values[a], exact.values[b]
            for name in sorted(self.own & exact.after.keys()):
                yield "variable", name, done.after[name], exact.after[name]

    def _errors(self, graph: Graph, steps: Sequence[Step]) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for kind, name, array, exact in self._pairs(graph, steps):
            key = kind, name
            found[key] = max(found.get(key, 0.0), distance(array, exact))
        return found

    def _outputs(self) -> tuple[Output, ...]:
        half, single = self._errors(*self._trial(frozenset())), self._errors(*self.single)
        return tuple(Output(*key, error, single[key]) for key, error in half.items())

    def _ops(self) -> Iterator[OpError]:
        """Yield the errors of the ops that the pass does not insert."""
        graph, steps = self._trial(frozenset())
        for op in needed(graph, ()):
            if op.name not in self.graph.ops or op.type in LEAVES:
                continue
            types = graph.types[op.name]
            if not any(t.dtype.is_floating for t in types):
                continue
            own = max(self._own(graph, op, step) for step in range(self.steps))
            values = [Value(op.name, i) for i in range(len(types))]
            error = max(
                distance(done.values[v], exact.values[v])
                for done, exact in zip(steps, self.exact, strict=True)
                for v in values
            )
            line = str(graph.lines.get(op.name, ""))
            dtype = next(t.dtype.name for t in types if t.dtype.is_floating)
            yield OpError(op.name, op.type, line, dtype, own, error)

    def _own(self, graph: Graph, op: Op, step: int) -> float:
        """Return the error of an op whose inputs are those of the float64 run, rounded once."""
        before = self.graph.ops[op.name]
        values = self.exact[step].values
        exact = [values[v] for v in before.inputs]
        types = graph.input_types(op)
        narrow = [as_type(x, t.dtype.numpy) for x, t in zip(exact, types, strict=True)]
        found = self._half(graph, op, narrow, step)
        wanted = self.arithmetic.exact(self.graph, before, exact, step)
        return max(map(distance, found, wanted), default=0.0)

    # ------------------------------------------------------------------------------------- report

    def report(self, tolerance: float, progress: Callable[[str], object]) -> Precision:
        """Return the errors, and the ops to keep in float32."""
        progress("computing the errors of ops")
        ops = tuple(self._ops())
        limited = [(out.kind, out.name) for out in self.outputs if out.single <= tolerance]

        def error(kept: frozenset[str]) -> float:
            found = self._errors(*self._trial(kept))
            return max((found[key] for key in limited), default=0.0) / tolerance

        candidates = self.candidates
        cost = sum(OVERHEAD + sum(t.size for t in row) for row in self.graph.types.values())
        budget = min(TRIALS, WORK // (cost * self.steps))
        progress(f"searching among {len(candidates)} ops")
        kept = smallest_set(candidates, error, budget)
        return Precision(
            job=self.job.name,
            line=str(self.job.line or ""),
            type=self.half,
            tolerance=tolerance,
            steps=self.steps,
            named=tuple(self.named),
            candidates=len(candidates),
            ops=ops,
            outputs=self.outputs,
            kept=kept,
        )


def _before_the_pass(request: CompileRequest) -> tuple[Graph, MixedPrecision, PassContext]:
    """Return the graph on one device before the pass of mixed precision, and the pass."""
    copies = overwritten_copies(request.graph, request.registry.ops)
    graph = on_one_device(with_copies(request.graph, copies))
    pipeline, context = logical_pipeline(request)
    for item in pipeline.passes:
        if item.name == MixedPrecision.name:
            return graph, item.run, context  # type: ignore[attr-defined]
        graph = item.apply(graph, context)
    raise LookupError(MixedPrecision.name)


def _gradients(graph: Graph) -> Mapping[str, tuple[Value, ...]]:
    """Return the gradients that updates read, by the variable that they update."""
    return {op.inputs[0].op: (op.inputs[1],) for op in graph.ops.values() if op.type in BY_TYPE}
