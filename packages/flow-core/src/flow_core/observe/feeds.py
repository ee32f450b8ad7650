"""Seeded random inputs and weights for a job, valid for the ops that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.frontend.session.variable_storage import initial_value
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.graph import Graph, Op, TensorType, Value


def _rows(axis: str | None, table: int = 0) -> Any:
    """Return a function for the bound of indices: the size of the axis that the indices index."""

    def bound(op: Op, types: tuple[TensorType, ...]) -> int:
        where = 0 if axis is None else int(op.attrs[axis])
        return types[table].shape[where]

    return bound


def _classes(op: Op, types: tuple[TensorType, ...]) -> int:
    """Return the bound of labels: the number of classes (size of the prediction's last axis)."""
    return int(op.attrs.get("depth") or types[0].shape[-1])


def _attribute(name: str) -> Any:
    return lambda op, types: int(op.attrs[name])


INDICES: Mapping[str, tuple[int, Any]] = {
    "gather": (1, _rows("axis")),
    "batch_gather": (1, lambda op, types: types[0].shape[len(types[1].shape) - 1]),
    "gather_nd": (1, lambda op, types: min(types[0].shape[: types[1].shape[-1]])),
    "scatter_nd": (0, lambda op, types: min(op.attrs["shape"][: types[0].shape[-1]])),
    "dim_gather": (1, _rows("dim")),
    "unsorted_segment_sum": (1, _attribute("num_segments")),
    "unsorted_batch_segment_sum": (1, _attribute("num_segments")),
    "one_hot": (0, _attribute("depth")),
    "sparse_softmax_cross_entropy": (1, _classes),
    "sparse_cross_entropy": (1, _classes),
}
"""For each op type that reads indices: the number of that input, and the function that returns the
bound of its indices."""

PASSING = frozenset(
    ("cast", "copy", "identity", "reshape", "squeeze", "expand_dims", "transpose", "concat",
     "slice", "parallel_cast")
)  # fmt: skip
"""Types of ops that pass indices through unchanged."""

UNKNOWN_BOUND = 2
"""The bound for integer inputs whose bound is unknown: such inputs are 0 or 1."""


def index_bounds(graph: Graph) -> dict[str, int]:
    """Return the exclusive bound of each integer input, by the name of its ``input`` op.

    The bound of an input is the smallest bound among all ops that its elements reach unchanged.
    """
    readers = graph.consumers()
    found: dict[str, int] = {}
    for op in graph.of_type("input"):
        if not graph.types[op.name][0].dtype.is_floating:
            bounds = list(_bounds(graph, readers, op.output()))
            found[op.name] = min(bounds, default=UNKNOWN_BOUND)
    return found


def _bounds(graph: Graph, readers: Mapping[Value, list[Op]], value: Value) -> Iterator[int]:
    for op in readers.get(value, ()):
        if op.type in PASSING:
            yield from _bounds(graph, readers, op.output())
        elif op.type in INDICES:
            position, bound = INDICES[op.type]
            if op.inputs[position] == value:
                yield bound(op, graph.input_types(op))


def draw_feeds(graph: Graph, names: Sequence[str], rng: np.random.Generator) -> list[Array]:
    """Draw an array for each ``input`` op of a job: floats in [0, 1), indices in their range."""
    bounds = index_bounds(graph)
    return [_array(graph.types[name][0], bounds.get(name, 0), rng) for name in names]


def _array(type_: TensorType, bound: int, rng: np.random.Generator) -> Array:
    if type_.dtype.is_floating:
        return rng.random(type_.shape).astype(type_.dtype.numpy)
    return rng.integers(0, max(bound, 1), type_.shape).astype(type_.dtype.numpy)


NOISE = 0.1


def draw_variable(info: VariableInfo, rng: np.random.Generator) -> Any:
    """Draw a variable's initial value, and add a little noise if all its elements are equal.

    With zero weights, many wrong rules would give correct results.  The noise is positive because
    second moments and variances must be positive.  Untrained scalars stay unchanged because the
    powers of the beta coefficients, as in LAMB, must stay below 1.
    """
    value = initial_value(info)
    if value.size == 1 and not info.attrs["trainable"]:
        return value
    if info.type.dtype.is_floating and value.size and (value == value.flat[0]).all():
        noise = rng.random(value.shape) * NOISE
        return (value.astype(np.float64) + noise).astype(info.type.dtype.numpy)
    return value


def whole_batches(feeds: Sequence[Array], parts: int) -> list[Array]:
    """Concatenate the feeds of all micro-batches into the feeds of a job.

    >>> [x.tolist() for x in whole_batches([np.zeros(1), np.ones(1), np.ones(1), np.ones(1)], 2)]
    [[0.0, 1.0], [1.0, 1.0]]
    """
    if parts == 1:
        return list(feeds)
    return [np.concatenate(feeds[i : i + parts]) for i in range(0, len(feeds), parts)]


def micro_batches(feeds: Sequence[Array], parts: int) -> list[Array]:
    """Split the feeds of a job into the feeds of micro-batches, the inverse of `whole_batches`."""
    return [part for array in feeds for part in np.split(array, parts)] if parts > 1 else [*feeds]
