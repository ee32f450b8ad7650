"""The time of a step by class of ops: as measured, or as predicted by the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flow_core.comm.exchange import BOXING
from flow_core.observe.measure import Span
from flow_core.plan import Plan

CLASSES: Sequence[tuple[str, tuple[str, ...]]] = (
    ("matrix products", ("matmul", "attention")),
    ("convolutions", ("conv",)),
    ("updates of variables", ("_update", "optimizer", "sgd", "adam")),
    ("normalization", ("norm", "batch_stat")),
    ("softmax and losses", ("softmax", "cross_entropy", "loss")),
    ("pooling", ("pool",)),
    ("reductions", ("reduce", "add_n", "sum")),
    ("lookups", ("gather", "scatter", "segment", "one_hot", "embedding")),
    ("input data", ("loader", "decode", "reader", "input")),
    ("shapes and copies", ("transpose", "reshape", "concat", "slice", "copy", "pad", "reorder")),
)
"""Classes of ops with parts of the names of their types; the first match decides."""

PRODUCTS = tuple(name for name, _ in CLASSES[:2])
TRANSFERS, ELEMENTWISE = "transfers", "elementwise and other"


@dataclass(frozen=True, slots=True)
class ClassTime:
    """The time of a class of ops in a step."""

    name: str
    tasks: int
    seconds: float  # the sum of the durations of the tasks
    types: Mapping[str, float]  # the op types with their seconds, the longest first


def class_of(type_: str) -> str:
    """Return the class of an op type.

    >>> [class_of(name) for name in ("matmul", "sgd_update", "boxing", "tanh")]
    ['matrix products', 'updates of variables', 'transfers', 'elementwise and other']
    """
    if type_ == BOXING:
        return TRANSFERS
    return next((name for name, parts in CLASSES if any(p in type_ for p in parts)), ELEMENTWISE)


def task_seconds(plan: Plan, spans: Iterable[Span] = ()) -> list[float]:
    """Return the seconds of each task: the measured median or, without spans, the prediction."""
    measured = {span.task: span.seconds for span in spans}
    if measured:
        return [measured.get(i, 0.0) for i in range(len(plan.tasks))]
    return [task.seconds for task in plan.tasks]


def by_class(plan: Plan, spans: Iterable[Span] = ()) -> list[ClassTime]:
    """Return the time of each class of ops, the longest first."""
    rows: dict[str, list[tuple[str, float]]] = {}
    for task, seconds in zip(plan.tasks, task_seconds(plan, spans), strict=True):
        rows.setdefault(class_of(task.type), []).append((task.type, seconds))
    found = [
        ClassTime(name, len(row), sum(s for _, s in row), _by_type(row))
        for name, row in rows.items()
    ]
    return sorted(found, key=lambda c: -c.seconds)


def _by_type(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for type_, seconds in rows:
        found[type_] = found.get(type_, 0.0) + seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))
