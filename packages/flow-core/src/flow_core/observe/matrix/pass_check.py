"""The check of the passes on the logical graph: each one must keep the values of ops.

Both graphs run on one device, from the same feeds and variables, without fusion and memory reuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.compiler.pass_list import stages
from flow_core.ir.graph import Graph, Value
from flow_core.observe.copies import overwritten_copies, with_copies
from flow_core.observe.feeds import draw_variable
from flow_core.observe.isolated_run import IsolatedRun, simulate_graph
from flow_core.observe.matrix.plan_check import EVERY_STEP, Finding, PlanCheck
from flow_core.observe.oracle import on_one_device
from flow_core.observe.rounding import allowed, drift, epsilon, explained, is_float, largest
from flow_core.observe.sensitivity import ROUNDINGS, moved
from flow_core.passes.mixed_precision import MixedPrecision

LAST = "to_physical"
MICRO = "gradient_accumulation"
"""The pass after which a graph computes all micro-batches of a step, and before it one."""

HALF_ROUNDINGS = float(1 << 14)
"""The size of a perturbation for mixed precision, in roundings of float32: a quarter of one of
bfloat16, which flips signs that decide whether an element contributes to a gradient."""

WRONG_PASS = "wrong pass"

ROUGH = 0.5
"""The allowed difference of values by mixed precision, whose purpose is to round: this finds wrong
values, and `flow verify --precision` measures the errors."""


def wrong_passes(check: PlanCheck, feeds: Sequence[Array], seed: int = 0) -> list[Finding]:
    """Return the first pass that changes values, with the first op whose value it changes."""
    compiled = check.job.compile()
    rng = np.random.default_rng(seed)
    before: Graph | None = None
    inputs = compiled.request.inputs
    fed = feeds[:: check.parts]
    for name, graph in stages(compiled):
        if name == LAST:
            break
        if name == MICRO:
            before, inputs, fed = None, compiled.inputs, feeds
        if before is not None and graph is not before:
            for op in graph.of_type("variable"):
                if op.name not in check.values:
                    info = check.session.declared[op.name]
                    check.values[op.name] = draw_variable(info, rng)
            found = next(_changes(check, before, graph, inputs, fed, name), None)
            if found is not None:
                return [found]
        before = graph
    return []


def _changes(
    check: PlanCheck,
    before: Graph,
    after: Graph,
    inputs: Sequence[str],
    feeds: Sequence[Array],
    name: str,
) -> Iterator[Finding]:
    types = (t for g in (before, after) for row in g.types.values() for t in row)
    is_mixed = name == MixedPrecision.name
    limit = ROUGH if is_mixed else allowed(types)
    old, new = _run(check, before, inputs, check.values), _run(check, after, inputs, check.values)
    a, b = old.run(feeds, 0), new.run(feeds, 0)
    if is_mixed and _overflows(a, b):
        return  # values that depend on infinities tell nothing
    common = [v for v in b if v in a and a[v].dtype == b[v].dtype and a[v].shape == b[v].shape]
    far = [v for v in common if drift(b[v], a[v]) > limit]
    updates = list(_updates(check, old, new, limit)) if limit < ROUGH else []
    if not far and not updates:
        return
    worst = max(drift(b[v], a[v]) for v in far) if far else 0.0
    sensitive = moved(
        lambda values: _run(check, before, inputs, values), check.values, [feeds], common,
        HALF_ROUNDINGS if is_mixed else ROUNDINGS,
    )  # fmt: skip
    if far and explained(worst, sensitive):
        far = []
    for value in far:
        text = f"pass {name!r} changes its value by {drift(b[value], a[value]):.1e}"
        yield _finding(after, value.op, text)
    for variable, error in updates:
        if not explained(error, sensitive):
            text = f"pass {name!r} changes the update of variable {variable!r} by {error:.1e}"
            yield _finding(after, _writer(check, after, variable), text)


def _overflows(before: Mapping[Value, Any], after: Mapping[Value, Any]) -> bool:
    """Return whether a value is infinite in float16, which has no numbers that large."""
    half = [v for v, x in after.items() if x.dtype == np.float16 and v in before]
    return any(
        np.isinf(after[v]).any() and np.abs(before[v]).max() > np.finfo(np.float16).max
        for v in half
        if before[v].dtype != np.float16
    )


def _run(
    check: PlanCheck, graph: Graph, inputs: Sequence[str], values: Mapping[str, Any]
) -> IsolatedRun:
    copies = overwritten_copies(graph, check.session.registry.ops)
    held = {c.name: values[c.variable][c.window].copy() for c in copies.values()}
    alone = on_one_device(with_copies(graph, copies))
    return simulate_graph(check.session, alone, inputs, {**values, **held}, check.options, {})


def _updates(
    check: PlanCheck, old: IsolatedRun, new: IsolatedRun, limit: float
) -> Iterator[tuple[str, float]]:
    """Yield the variables whose updates differ, and by how much, relative to the largest change."""
    a, b = old.variables.values(), new.variables.values()
    for name in sorted(a.keys() & b.keys() & check.values.keys()):
        start = check.values[name]
        if not is_float(start) or start.shape != a[name].shape:
            continue
        with np.errstate(all="ignore"):
            steps = [x.astype(np.float64) - start.astype(np.float64) for x in (b[name], a[name])]
        size = largest(steps[1]) or largest(steps[0])
        noise = 8 * epsilon(start) * largest(start) / size if size else 0.0
        error = drift(*steps)
        if error > limit + noise:
            yield name, error


def _writer(check: PlanCheck, graph: Graph, variable: str) -> str:
    for op in graph.ops.values():
        mutates = check.session.registry.ops[op.type].mutates
        if any(op.inputs[i].op == variable for i in mutates if i < len(op.inputs)):
            return op.name
    return variable


def _finding(graph: Graph, op: str, text: str) -> Finding:
    line = str(graph.lines.get(op, ""))
    return Finding(WRONG_PASS, op, graph.ops[op].type, line, "every device", EVERY_STEP, text)
