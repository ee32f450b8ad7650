"""Changes to a program that its plan suggests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec

from flow_core.base.dtypes import float32
from flow_core.observe.document import PlanDocument
from flow_core.observe.measure import NOT_MEASURED, Measured
from flow_core.observe.summary.op_times import (
    ELEMENTWISE,
    PRODUCTS,
    TRANSFERS,
    by_class,
    class_of,
    task_seconds,
)
from flow_core.observe.tables import count_bytes, share
from flow_core.plan import Plan

LARGE = 0.25
"""The share of time or memory from which a suggestion is made."""

GAP = 1.0
"""The percentage above the optimum from which another search for the SBP is suggested."""

LONG = 1e-3
"""The seconds of products per step from which another precision is suggested."""

MANY = 2 << 20
"""The number of bytes of a buffer or arena below which no suggestion about memory is made."""


def advice(doc: PlanDocument, measured: Measured = NOT_MEASURED) -> Iterator[str]:
    """Yield suggestions, each of which begins with what to change."""
    yield from _hints(doc)
    yield from _transfers(doc.plan, measured)
    yield from _memory(doc)
    yield from _layouts(doc.plan)
    yield from _kernels(doc.plan, measured)
    yield from _precision(doc, measured)


def _hints(doc: PlanDocument) -> Iterator[str]:
    for hint, _, saved, more in doc.hints:
        if saved != "saves nothing" and not more:  # saving memory may be the purpose of a hint
            yield f"drop the hint that {hint}: {saved} per step"
    for name, text in doc.selection:
        percent = re.search(r"([\d.]+)%", text) if name == "gap" else None
        if percent and float(percent[1]) >= GAP:
            yield (
                "set function_config.sbp_selector('optimal'): the cost of the chosen SBP may be "
                f"{percent[0]} above the optimum"
            )


def _transfers(plan: Plan, measured: Measured) -> Iterator[str]:
    times = {c.name: c.seconds for c in by_class(plan, measured.spans)}
    total, transfers = sum(times.values()), times.get(TRANSFERS, 0.0)
    if not total or transfers < LARGE * total:
        return
    largest = max(plan.ledger, key=lambda e: e.seconds)
    part = share(transfers, total)
    yield (
        f"make the batch larger, or use fewer devices: transfers take {part} of the tasks' time, "
        f"the most expensive one is {largest.value} ({', '.join(largest.steps)})"
    )


def _memory(doc: PlanDocument) -> Iterator[str]:
    plan = doc.plan
    arena = max(plan.arenas, key=lambda a: a.nbytes, default=None)
    if doc.kind != "train" or arena is None or arena.nbytes < MANY:
        return
    kinds = {b.name: b.kind for b in plan.buffers}
    kept = sum(n for n, name, _ in arena.owners if kinds.get(name) == "temp")
    if kept > LARGE * arena.lower_bound:
        yield (
            "recompute activations with flow.experimental.scope.config(checkpointing=True): "
            f"activations and gradients hold {count_bytes(kept)} at the peak of {arena.device}"
        )


def _layouts(plan: Plan) -> Iterator[str]:
    counts = [t.attrs.get("reordered") for t in plan.tasks]
    copied = [n for n in counts if isinstance(n, int) and n]
    if copied:
        yield (
            f"choose one memory layout: {len(copied)} tasks copy {count_bytes(sum(copied))} per "
            'step into another layout (--full, "changes of layout")'
        )


def _kernels(plan: Plan, measured: Measured) -> Iterator[str]:
    times = {c.name: c.seconds for c in by_class(plan, measured.spans)}
    total, rest = sum(times.values()), times.get(ELEMENTWISE, 0.0)
    slow = {
        t.type for t in plan.tasks
        if t.kernel.startswith("numpy.") and ("matmul" in t.type or "conv" in t.type)
    }  # fmt: skip
    if slow and find_spec("flow_onednn") is None:
        yield f"install flow-onednn: numpy's kernels run {', '.join(sorted(slow)[:3])}"
    if measured.steps and total and rest > 2 * LARGE * total:
        yield (
            f"look at elementwise ops, which take {share(rest, total)} of the tasks' time: "
            "the page of --html shows each op's time"
        )


def _precision(doc: PlanDocument, measured: Measured) -> Iterator[str]:
    """Suggest mixed precision for float32 products, if the devices multiply a 16-bit type fast."""
    plan = doc.plan
    if not doc.fast or plan.settings.get("mixed_precision_data_type"):
        return
    spent = [0.0, 0.0]
    for task, seconds in zip(plan.tasks, task_seconds(plan, measured.spans), strict=True):
        dtypes = {plan.buffers[i].type.dtype for i in (*task.inputs[:2], *task.outputs[:1])}
        spent[class_of(task.type) in PRODUCTS and dtypes == {float32}] += seconds
    if spent[1] >= max(LONG, LARGE * sum(spent)):
        yield (
            "set function_config.enable_auto_mixed_precision(True): products take "
            f"{share(spent[1], sum(spent))} of the tasks' time, and this machine multiplies "
            f"{doc.fast} at least twice as fast as float32"
        )
