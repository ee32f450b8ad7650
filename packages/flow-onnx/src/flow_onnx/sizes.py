"""Override sizes of inputs, and make sizes open.

A graph has the same ops for all sizes, so that an override only needs new type inference. For each
open size, types are inferred with two different numbers: sizes that then differ are open, and nodes
that differ are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NoReturn

from onnx import NodeProto

from flow_core.authoring.specs import Attrs, ExportedJob, Graph, InferContext, Op, TensorType, Value
from flow_core.base.errors import FlowError, UnsupportedError
from flow_core.base.shapes import Shape, num_elements
from flow_onnx.network import Built
from flow_onnx.options import Options, Sizes
from flow_onnx.types import Dims


@dataclass(frozen=True, slots=True)
class Sized:
    """A graph with overridden sizes.

    Attributes:
        graph: the graph.
        other: the same graph with other numbers for open sizes; None if no size is open.
        names: name of each open size, by its numbers in the two graphs.
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

    def check_agreement(self, job: ExportedJob, built: Built, other: Built) -> None:
        """Reject nodes whose attributes or constants depend on an open size."""
        pairs = zip_longest(built.network.nodes, other.network.nodes)
        for node, other_node in pairs:
            if (
                node is None
                or other_node is None
                or _content(built, node) != _content(other, other_node)
            ):
                maker = built.made_by[node.name] if node else other.made_by[other_node.name]
                kind = (node or other_node).op_type
                _refuse(job, self.graph, maker, f"{kind} needs numbers for the open sizes")


def _content(built: Built, node: NodeProto) -> tuple[object, ...]:
    """Return the content of a node, without the names of the values that it reads and makes."""
    constants = built.network.constants
    arrays = [constants[name] for name in node.input if name in constants]
    attributes = [attribute.SerializeToString() for attribute in node.attribute]
    return node.op_type, attributes, [(array.dtype, array.tolist()) for array in arrays]


def _refuse(job: ExportedJob, graph: Graph, op: Op, found: str) -> NoReturn:
    raise UnsupportedError(
        f"exporting job {job.name!r} to ONNX with other sizes",
        at=graph.lines.get(op.name, job.at),
        found=f"{op.type} {op.name!r}: {found}",
        allowed="ops whose attributes do not contain the overridden sizes",
        hint="pass -1 for the size to flow.reshape, or omit the size from shape_override",
    )


def resized(job: ExportedJob, options: Options) -> Sized:
    """Return the job's graph with the sizes of ``shape_override``.

    Raises:
        UnsupportedError: an op rejects these sizes, or requires fixed numbers.
    """
    sizes = options.sizes or {}
    if not sizes:
        return Sized(job.graph)
    known = {name: n for name, n, _ in _open_sizes(job, sizes)}
    for name, size, value in _open_sizes(job, sizes):
        if known[name] != size:
            found = f"the size {name!r} of {value}, which is both {known[name]} and {size}"
            _refuse(job, job.graph, job.graph.ops[value.op], found)
    graph = _inferred(job, _shapes(job, sizes, known))
    if not known:
        return Sized(graph)
    others = {name: 2 * n + 1 + i for i, (name, n) in enumerate(known.items())}
    other = _inferred(job, _shapes(job, sizes, others))
    names = {(known[name], others[name]): name for name in known}
    return Sized(graph, other, names, dict(_different(graph, other)))


def _open_sizes(job: ExportedJob, sizes: Mapping[str, Sizes]) -> Iterator[tuple[str, int, Value]]:
    """Yield the name of each open size, its number in the job, and the value that has it."""
    for name, shape in sizes.items():
        value = job.inputs[name]
        for size, n in zip(shape, job.graph.type_of(value).shape, strict=True):
            if isinstance(size, str):
                yield size, n, value


def _shapes(
    job: ExportedJob, sizes: Mapping[str, Sizes], numbers: Mapping[str, int]
) -> dict[str, Shape]:
    """Return the shape of each ``input`` op, with numbers for open sizes."""
    return {
        job.inputs[name].op: tuple(numbers[n] if isinstance(n, str) else n for n in shape)
        for name, shape in sizes.items()
    }


def _different(graph: Graph, other: Graph) -> Iterator[tuple[Value, frozenset[int]]]:
    for name, types in graph.types.items():
        for i, (a, b) in enumerate(zip(types, other.types[name], strict=True)):
            pairs = enumerate(zip(a.shape, b.shape, strict=True))
            axes = frozenset(axis for axis, (n, m) in pairs if n != m)
            if axes:
                yield Value(name, i), axes


def _inferred(job: ExportedJob, shapes: Mapping[str, Shape]) -> Graph:
    """Return the graph with the types that follow from other input shapes."""
    types: dict[str, tuple[TensorType, ...]] = {}
    ops: dict[str, Op] = {}
    for op in job.graph.ops.values():
        inputs = tuple(types[v.op][v.index] for v in op.inputs)
        changed = _adapted(job.graph, op, inputs, shapes)
        context = InferContext(
            op.name, op.type, inputs, changed.attrs, job.graph.lines.get(op.name)
        )
        try:
            types[op.name] = tuple(job.specs[op.type].infer(context))
        except FlowError as error:
            _refuse(job, job.graph, op, str(error.found))
        ops[op.name] = changed
    return replace(job.graph, ops=ops, types=types)


def _adapted(
    graph: Graph, op: Op, inputs: tuple[TensorType, ...], shapes: Mapping[str, Shape]
) -> Op:
    """Return the op with its shape attribute adapted to other sizes."""
    if op.name in shapes:
        return replace(op, attrs=Attrs({**op.attrs, "shape": shapes[op.name]}))
    if op.type == "reshape" and inputs != graph.input_types(op):
        shape = reshaped(op.attrs["shape"], graph.input_types(op)[0].shape, inputs[0].shape)
        return replace(op, attrs=Attrs({**op.attrs, "shape": shape}))
    return op


def reshaped(wanted: Shape, before: Shape, now: Shape) -> Shape:
    """Adapt the target shape of a reshape to another input shape.

    Leading sizes that are equal to those of the input are replaced by the new ones. If the numbers
    of elements then differ, the first size becomes -1, so that it is inferred.

    >>> reshaped((100, -1), (100, 28, 28), (7, 28, 28)), reshaped((100, 8), (800,), (56,))
    ((7, -1), (-1, 8))
    """
    shape = list(wanted)
    for i, (size, old, new) in enumerate(zip(wanted, before, now, strict=False)):
        if size != old:
            break
        shape[i] = new
    fits = -1 in shape or num_elements(shape) == num_elements(now)
    return tuple(shape) if fits else (-1, *wanted[1:])
