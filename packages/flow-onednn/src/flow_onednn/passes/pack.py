"""Pack a weight once for the products of several steps, or of several devices that share memory.

Dot products of bfloat16 read weights whose rows are interleaved in pairs; if they are not packed,
each product interleaves them again.  Outside of training, they are packed when variables are
overwritten.

Several devices each get an op that packs their copy of the weight.  Devices that share one copy
share the packed weight as well, and only the first of their packing ops runs.  If one product can
multiply the rows of all devices, the pass does nothing, since that product packs the weight only
once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flow_core.authoring.backends import side_by_side
from flow_core.authoring.pass_api import PassContext, Rewriter, constants_of_variables, like_op
from flow_core.authoring.specs import Attrs, Graph, KernelQuery, KernelSpec, Op, tensor_type
from flow_core.base.dtypes import bfloat16, float32
from flow_onednn.kernels.packed import PACK, PRODUCT, attrs_of, constant_size, packed_size
from flow_onednn.kernels.partitioned_matmul import same_rows
from flow_onednn.recipes import Problem, product_types

LEAST = 3
"""Minimum number of devices; packing takes as long as the implicit packing in two products."""
FEW = 32
"""Maximum rows per device; with 32 rows, four 32 x 784 x 512 products take an eighth less time."""
LARGE = 1 << 18
"""Minimum bytes of a weight; the time to pack a smaller weight is negligible."""


@dataclass(frozen=True)
class PackWeights:
    """The pass that packs weights once for all devices of this process."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_pack"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with packed weights for products on several devices of this process."""
        graph = self._constants(graph, context)
        copies = context.shared_copies
        home = {name: i for i, names in enumerate(copies) for name in names}
        if not home:
            return graph
        rewriter = Rewriter(graph)
        for ops in self._groups(graph, home):
            for op, size in _worth(graph, ops):
                _pack(rewriter, op, _problem(graph, op), size)
        return rewriter.finish()

    def _constants(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with packed bfloat16 weights, if no step changes the weights."""
        found = [
            op for op in _products(graph, self.devices)
            if graph.type_of(op.inputs[1]).dtype is bfloat16 and _fits(graph, op)
        ]  # fmt: skip
        once = constants_of_variables(graph, context.specs) if found else frozenset()
        rewriter = Rewriter(graph)
        for op in found:
            size = constant_size(_problem(graph, op)) if op.inputs[1].op in once else None
            if size is not None:
                _pack(rewriter, op, _problem(graph, op), size)
        return rewriter.finish()

    def _groups(self, graph: Graph, home: Mapping[str, int]) -> Iterator[list[Op]]:
        """Yield groups of products that are parts of one logical op, with copies of one weight."""
        groups: dict[object, list[Op]] = {}
        for op in _products(graph, self.devices):
            origin = graph.origin(op.name)
            copy = home.get(op.inputs[1].op)
            if origin.rank is not None and copy is not None:
                groups.setdefault((origin.unsharded, copy), []).append(op)
        yield from groups.values()


def _products(graph: Graph, devices: Collection[str]) -> Iterator[Op]:
    for type_ in ("matmul", "onednn_matmul"):
        yield from (op for op in graph.of_type(type_) if op.placement.device_type in devices)


def _fits(graph: Graph, op: Op) -> bool:
    """Return whether a product of this form can have packed weights."""
    a, b = graph.input_types(op)[:2]
    plain = op.attrs["alpha"] == 1.0 and not op.attrs["transpose_a"]
    alike = a.dtype is b.dtype and a.dtype.name in product_types() and a.size and b.size
    return bool(plain and alike and len(a.shape) == len(b.shape) == 2)


def _worth(graph: Graph, ops: Sequence[Op]) -> Iterator[tuple[Op, int]]:
    for op in ops if len(ops) >= LEAST and not _joined(graph, ops) else ():
        a, b = graph.input_types(op)[:2]
        large = a.dtype is float32 and a.shape[0] <= FEW and b.nbytes >= LARGE
        if _fits(graph, op) and large:
            size = packed_size(_problem(graph, op))
            if size is not None:
                yield op, size


def _joined(graph: Graph, ops: Sequence[Op]) -> bool:
    """Return whether one product can multiply the rows of all devices."""
    parts = [
        KernelQuery(op.type, op.attrs, graph.input_types(op), graph.types[op.name]) for op in ops
    ]
    a, out = (
        side_by_side([types[0] for types in side])
        for side in ([p.inputs for p in parts], [p.outputs for p in parts])
    )
    if a is None or out is None:
        return False
    whole = replace(parts[0], inputs=(a, *parts[0].inputs[1:]), outputs=(out,))
    return same_rows(whole, parts)


def _problem(graph: Graph, op: Op) -> Problem:
    items = tuple(sorted(op.attrs.items()))
    return Problem(op.type, graph.input_types(op), graph.types[op.name], items)


def _pack(rewriter: Rewriter, op: Op, problem: Problem, size: int) -> None:
    origin = rewriter.graph.origin(op.name)
    packed = origin._replace(logical=f"{origin.logical}/packed")
    (b, *bias), attrs = op.inputs[1:], attrs_of(problem)
    how = {**attrs, "transpose_b": op.attrs["transpose_b"], "bias": bool(bias), "size": size}
    pack = Op(str(packed), PACK, (b,), Attrs(how), op.placement)
    types = (tensor_type((size,), rewriter.type_of(b).dtype),)
    rewriter.before(op).add(pack, types, origin=packed)
    rewriter.replace(op, like_op(op, PRODUCT, attrs, (op.inputs[0], pack.output(), *bias)))
