"""Importers of branches and loops, whose bodies are graphs within the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from flow_core.base.dtypes import as_dtype
from flow_onnx.importers.arrays import sliced
from flow_onnx.importers.context import Blob, Importer, Node, as_type, reshaped, transposed

Step = tuple[tuple[Blob, ...], tuple[Blob, ...] | None]
"""What a body of `flow.scan` returns: the next state, and the results of the position."""

LARGEST_COUNT = 2**24
"""Maximum number of positions of a loop."""


def subgraphs(node: NodeProto) -> Iterable[GraphProto]:
    """Return the graphs among the attributes of a node."""
    return (a.g for a in node.attribute if a.HasField("g"))


def _if(n: Node) -> tuple[Blob, ...]:
    graphs = [n.attr("then_branch"), n.attr("else_branch")]
    if isinstance(n.value(0), np.ndarray):
        return tuple(n.bodies.run(graphs[not n.number(0, "a condition", None)], ()))
    branches = (partial(_blobs, n, graph, ()) for graph in graphs)
    found = n.bodies.tools.cond(_flag(n.blob()), *branches)
    return found if isinstance(found, tuple) else (found,)


def _blobs(n: Node, graph: GraphProto, inputs: Sequence[tuple[Blob, int]]) -> tuple[Blob, ...]:
    """Add the ops of a graph; return its results."""
    return tuple(map(n.bodies.blob, _names(graph), n.bodies.run(graph, inputs)))


def _names(graph: GraphProto) -> list[str]:
    return [value.name for value in graph.output]


def _flag(x: Blob) -> Blob:
    """Return a condition as `flow.cond` reads and bodies pass it on."""
    return reshaped(as_type(x, "int8"), (1,))


def _scan(n: Node) -> tuple[Blob, ...]:
    if n.opset < 9:
        n.unsupported("sequences with an axis of samples before that of positions, as in opset 8")
    graph, count = n.attr("body"), n.attr("num_scan_inputs")
    carries = len(n.inputs) - count
    if not 0 < count <= len(n.inputs):
        n.invalid(f"num_scan_inputs={count} of {len(n.inputs)} inputs", "1 to all inputs")
    given = _places(n, "input", count)
    xs = (_moved(n, n.blob(carries + i), *place) for i, place in enumerate(given))

    def step(state: Sequence[Blob], elements: Sequence[Blob]) -> Step:
        found = _blobs(n, graph, [*zip((*state, *elements), n.elements, strict=True)])
        return found[:carries], found[carries:]

    last, rows = n.bodies.tools.scan(step, tuple(map(n.blob, range(carries))), tuple(xs))
    places = _places(n, "output", len(rows))
    return *last, *(_placed(n, y, *place) for y, place in zip(rows, places, strict=True))


def _places(n: Node, kind: str, count: int) -> list[tuple[int, bool]]:
    """Return the axis of the positions of each sequence, and whether they are in reverse order."""
    axes = n.attr(f"scan_{kind}_axes", [0] * count)
    directions = n.attr(f"scan_{kind}_directions", [0] * count)
    if len(axes) != count or len(directions) != count or not {*directions} <= {0, 1}:
        found = f"scan_{kind}_axes={[*axes]}, scan_{kind}_directions={[*directions]}"
        n.invalid(found, f"{count} axes, and {count} directions of 0 or 1")
    return [*zip(axes, map(bool, directions), strict=True)]


def _moved(n: Node, x: Blob, axis: int, is_reverse: bool) -> Blob:
    """Return a sequence with its positions on axis 0, in the order of the loop."""
    (axis,) = n.axes([axis], len(x.shape), "scan_input_axes")
    return _turned(
        transposed(x, (axis, *(i for i in range(len(x.shape)) if i != axis))), is_reverse
    )


def _placed(n: Node, x: Blob, axis: int, is_reverse: bool) -> Blob:
    """Return stacked results with the axis of the positions moved to another place."""
    (axis,) = n.axes([axis], len(x.shape), "scan_output_axes")
    rest = range(1, len(x.shape))
    return transposed(_turned(x, is_reverse), (*rest[:axis], 0, *rest[axis:]))


def _turned(x: Blob, is_reverse: bool) -> Blob:
    return sliced(x, {0: range(x.shape[0])[::-1]}) if is_reverse else x


def _loop(n: Node) -> tuple[Blob, ...]:
    count, on = n.number(0, "the number of positions of a loop", None), True
    if n.has(1):
        on = n.value(1) if isinstance(n.value(1), np.ndarray) else n.blob(1)
    is_known = on is True or isinstance(on, np.ndarray)
    if is_known and not n.number(1, "a condition", True):
        count = 0
    if count is None or count > LARGEST_COUNT:
        found = "any number of" if count is None else f"{count:,}"
        n.unsupported(f"a loop of {found} positions; up to {LARGEST_COUNT:,} are supported")
    states = [n.blob(i) for i in range(2, len(n.inputs))]
    if is_known and not _ends_early(n):
        return _counted_loop(n, max(count, 0), states)
    return _ending_loop(n, max(count, 0), n.constant(ONCE, "on") if is_known else on, states)


ONCE = np.ones(1, np.int8)


def _ends_early(n: Node) -> bool:
    """Return whether the condition that the body of a loop returns is known only in a step."""
    graph: GraphProto = n.attr("body")
    known = {"", graph.input[1].name, *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:
        read = all(name in known or n.bodies.is_known(name) for name in node.input)
        if read and not any(subgraphs(node)):
            known.update(node.output)
    last = graph.output[0].name
    return last not in known and not n.bodies.is_known(last)


def _arguments(n: Node, position: Blob, states: Sequence[Blob]) -> list[tuple[Blob, int]]:
    """Return the inputs of the body of a loop, with their element types."""
    rank = len(n.attr("body").input[1].type.tensor_type.shape.dim)
    on = (ONCE.reshape((1,) * rank), TensorProto.BOOL)
    return [(position, TensorProto.INT64), on, *zip(states, n.elements[2:], strict=True)]


def _counted_loop(n: Node, count: int, states: Sequence[Blob]) -> tuple[Blob, ...]:
    """Add a loop that runs for all positions."""
    graph, carries = n.attr("body"), len(states)

    def step(state: Sequence[Blob], position: Blob) -> Step:
        on, *found = n.bodies.run(graph, _arguments(n, position, state))
        if count > 1 and not np.all(on):
            n.unsupported("a body that ends its loop at the first position")
        blobs = tuple(map(n.bodies.blob, _names(graph)[1:], found))
        return blobs[:carries], blobs[carries:]

    last, rows = n.bodies.tools.scan(step, tuple(states), n.counting(count, as_dtype("int64")))
    return *last, *rows


def _ending_loop(n: Node, count: int, on: Blob, states: Sequence[Blob]) -> tuple[Blob, ...]:
    """Add a loop whose body ends it; the states pass through the positions that are left."""
    graph, carries = n.attr("body"), len(states)
    if len(graph.output) > 1 + carries:
        n.unsupported("results of each position of a loop that may end before its last position")

    def step(state: Sequence[Blob], position: Blob) -> Step:
        on, *values = state

        def run() -> tuple[Blob, ...]:
            goes_on, *found = _blobs(n, graph, _arguments(n, position, values))
            return _flag(goes_on), *found

        return n.bodies.tools.cond(on, run, lambda: tuple(state)), None

    numbers = n.counting(count, as_dtype("int64"))
    (_, *last), _ = n.bodies.tools.scan(step, (_flag(on), *states), numbers)
    return tuple(last)


IMPORTERS: Mapping[str, Importer] = {"If": _if, "Loop": _loop, "Scan": _scan}
