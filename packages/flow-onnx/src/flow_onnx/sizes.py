"""Override sizes of inputs, and make sizes open.

The job's program is traced for the overridden sizes, so that numbers that it computes from sizes
are right. For open sizes, it is traced with two different numbers: sizes that then differ are open,
and nodes that differ are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NoReturn

from onnx import ValueInfoProto

from flow_core.authoring.bodies import body_graph, body_types
from flow_core.authoring.specs import ExportedJob, Graph, Op, TensorType, Value
from flow_core.base.errors import FlowError, UnsupportedError
from flow_core.base.shapes import Shape
from flow_onnx.options import Options, Sizes
from flow_onnx.types import Dims, value_info


@dataclass(frozen=True, slots=True)
class Sized:
    """A graph with overridden sizes.

    Attributes:
        other: the same graph with other numbers for open sizes; None if no size is open.
        names: name of each open size, by its numbers in the two graphs, in both orders.
        open: the axes of open size, for each value.
    """

    graph: Graph
    other: Graph | None = None
    names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    open: Mapping[Value, frozenset[int]] = field(default_factory=dict)

    def dims(self, value: Value) -> Dims:
        """Return the sizes of a value: a number, or for open sizes a name or None."""
        shape = self.graph.type_of(value).shape
        if self.other is None:
            return shape
        pairs = zip(shape, self.other.type_of(value).shape, strict=True)
        return [n if n == m else self.names.get((n, m)) for n, m in pairs]

    def info(self, name: str, value: Value) -> ValueInfoProto:
        """Return the declaration of a value in a model."""
        return value_info(name, self.graph.type_of(value).dtype, self.dims(value))

    @property
    def swapped(self) -> Sized:
        """The same with the roles of the two graphs exchanged, if a size is open."""
        return self if self.other is None else replace(self, graph=self.other, other=self.graph)

    def body(self, op: Op, attr: str) -> Sized:
        """Return the graphs of a body of an op."""
        graph = _body(self.graph, op, attr)
        if self.other is None:
            return Sized(graph)
        other = _body(self.other, self.other.ops[op.name], attr)
        return Sized(graph, other, self.names, dict(_different(graph, other)))


def _body(graph: Graph, op: Op, attr: str) -> Graph:
    return body_graph(op.attrs[attr], body_types(op, graph.input_types(op))[attr])


ALLOWED = "ops whose attributes do not contain the overridden sizes"
HINT = "pass -1 for the size to flow.reshape, or omit the size from shape_override"


def _attempted(job: ExportedJob) -> str:
    return f"exporting job {job.name!r} to ONNX with other sizes"


def refuse(job: ExportedJob, graph: Graph, op: Op | None, found: str) -> NoReturn:
    """Raise an error about an op that depends on a size."""
    at = job.at
    if op is not None:
        at, found = graph.lines.get(op.name, job.at), f"{op.type} {op.name!r}: {found}"
    raise UnsupportedError(_attempted(job), at=at, found=found, allowed=ALLOWED, hint=HINT)


def resized(job: ExportedJob, options: Options) -> Sized:
    """Return the job's graph with the sizes of ``shape_override``.

    Raises `UnsupportedError` if an op rejects these sizes, or requires fixed numbers.
    """
    sizes = options.sizes or {}
    if not sizes:
        return Sized(job.graph)
    known = {name: n for name, n, _ in _open_sizes(job, sizes)}
    for name, size, value in _open_sizes(job, sizes):
        if known[name] != size:
            found = f"the size {name!r} of {value}, which is both {known[name]} and {size}"
            refuse(job, job.graph, job.graph.ops[value.op], found)
    graph = _traced(job, _shapes(sizes, known))
    if not known:
        return Sized(graph)
    others = {name: 2 * n + 1 + i for i, (name, n) in enumerate(known.items())}
    other = _traced(job, _shapes(sizes, others))
    _check_structure(job, graph, other)
    pairs = {(known[name], others[name]): name for name in known}
    names = {**pairs, **{pair[::-1]: name for pair, name in pairs.items()}}
    return Sized(graph, other, names, dict(_different(graph, other)))


def _open_sizes(job: ExportedJob, sizes: Mapping[str, Sizes]) -> Iterator[tuple[str, int, Value]]:
    """Yield the name of each open size, its number in the job, and the value that has it."""
    for name, shape in sizes.items():
        value = job.inputs[name]
        for size, n in zip(shape, job.graph.type_of(value).shape, strict=True):
            if isinstance(size, str):
                yield size, n, value


def _shapes(sizes: Mapping[str, Sizes], numbers: Mapping[str, int]) -> dict[str, Shape]:
    """Return the shape of each overridden input, with numbers for open sizes."""
    return {
        name: tuple(numbers[n] if isinstance(n, str) else n for n in shape)
        for name, shape in sizes.items()
    }


def _check_structure(job: ExportedJob, graph: Graph, other: Graph) -> None:
    """Reject programs whose ops depend on an open size."""
    for op, again in zip_longest(graph.ops.values(), other.ops.values()):
        if op is None or again is None or (op.type, op.inputs) != (again.type, again.inputs):
            source, found = (graph, op) if op is not None else (other, again)
            refuse(job, source, found, "the program uses other ops for other open sizes")


def _different(graph: Graph, other: Graph) -> Iterator[tuple[Value, frozenset[int]]]:
    for name, types in graph.types.items():
        for i, (a, b) in enumerate(zip(types, other.types[name], strict=True)):
            pairs = enumerate(zip(a.shape, b.shape, strict=True))
            axes = frozenset(axis for axis, (n, m) in pairs if n != m)
            if axes:
                yield Value(name, i), axes


def _traced(job: ExportedJob, shapes: Mapping[str, Shape]) -> Graph:
    """Return the graph that the program defines for other input shapes."""
    if job.retrace is None:
        raise UnsupportedError(_attempted(job), at=job.at, found="a job without its program")
    try:
        graph = job.retrace(shapes).graph
    except FlowError as error:
        found = f"{error.attempted}: {error.found}"
        raise UnsupportedError(
            _attempted(job), at=error.at or job.at, found=found, allowed=ALLOWED, hint=HINT
        ) from error
    if _variables(graph) != _variables(job.graph):
        found = "variables whose names or shapes depend on the sizes"
        raise UnsupportedError(_attempted(job), at=job.at, found=found, allowed=ALLOWED)
    return graph


def _variables(graph: Graph) -> dict[str, TensorType]:
    return {op.name: graph.types[op.name][0] for op in graph.of_type("variable")}
