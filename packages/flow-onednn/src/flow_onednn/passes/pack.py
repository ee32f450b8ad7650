"""Pack a weight once for the products of several devices that share memory.

Each device gets an op that packs its copy of the weight.  Devices that share one copy share the
packed weight as well, and only the first of their packing ops runs.  If one product can multiply
the rows of all devices, the pass does nothing, since that product packs the weight only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flow_core.authoring.backends import side_by_side
from flow_core.authoring.pass_api import PassContext, Rewriter, like_op
from flow_core.authoring.specs import Attrs, Graph, KernelQuery, KernelSpec, Op, tensor_type
from flow_onednn.kernels.packed import PACK, PRODUCT, attrs_of, packed_size
from flow_onednn.kernels.partitioned_matmul import same_rows
from flow_onednn.recipes import Problem

LEAST = 3
"""Minimum number of devices; packing takes as long as the implicit packing in two products."""
FEW = 32
"""Maximum rows per device; with 32 rows, four 32 x 784 x 512 products take an eighth less time."""
LARGE = 1 << 18
"""Minimum bytes of a weight; the time to pack a smaller weight is negligible."""


@dataclass(frozen=True)
class PackWeights:
    """The pass that packs weights once for all devices of this process.

    Attributes:
        kernels: the kernels of this backend, by op type.
        devices: device types whose ops run on the CPU.
    """

    kernels: Mapping[str, Sequence[KernelSpec]]
    devices: tuple[str, ...] = ("cpu",)
    name: str = "onednn_pack"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with packed weights for products on several devices of this process."""
        copies = context.shared_copies
        home = {name: i for i, names in enumerate(copies) for name in names}
        if not home:
            return graph
        rewriter = Rewriter(graph)
        for ops in self._groups(graph, home):
            for op, size in _worth(graph, ops):
                _pack(rewriter, op, _problem(graph, op), size)
        return rewriter.finish()

    def _groups(self, graph: Graph, home: Mapping[str, int]) -> Iterator[list[Op]]:
        """Yield groups of products that are parts of one logical op, with copies of one weight."""
        groups: dict[object, list[Op]] = {}
        for type_ in ("matmul", "onednn_matmul"):
            for op in graph.of_type(type_):
                origin = graph.origin(op.name)
                ours = op.placement.device_type in self.devices
                copy = home.get(op.inputs[1].op)
                if origin.rank is not None and ours and copy is not None:
                    groups.setdefault((origin.unsharded, copy), []).append(op)
        yield from groups.values()


def _worth(graph: Graph, ops: Sequence[Op]) -> Iterator[tuple[Op, int]]:
    for op in ops if len(ops) >= LEAST and not _joined(graph, ops) else ():
        a, b = graph.input_types(op)[:2]
        plain = op.attrs["alpha"] == 1.0 and not op.attrs["transpose_a"]
        float32 = all(t.dtype.name == "float32" and t.size for t in (a, b))
        matrices = len(a.shape) == len(b.shape) == 2
        if plain and float32 and matrices and a.shape[0] <= FEW and b.nbytes >= LARGE:
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
