"""Packs the weight of several devices' products once, where they share their memory.

Each device gets an op that packs its own copy of the weight.  Devices that share the copy share
what is made of it as well, so that all but the first of these ops are not done.

Where the rows of all devices may be multiplied at once, the weight is packed once anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flow_core.ir.graph import Attrs, Graph, Op, tensor_type
from flow_core.plugins.rows import side_by_side
from flow_core.plugins.specs import KernelQuery, KernelSpec
from flow_core.rewriting.editor import changed, edit
from flow_onednn.kernels.packed import PACK, PRODUCT, attrs_of, packed_size
from flow_onednn.kernels.partitioned_matmul import same_rows
from flow_onednn.recipes import Problem

LEAST = 3
"""Devices: packing takes as long as two products spend on it."""
FEW = 32
"""Rows per device up to which it is worth it: an eighth of four products of 32 x 784 x 512."""
LARGE = 1 << 18
"""Bytes of a weight below which packing it is nothing."""


@dataclass(frozen=True)
class PackWeights:
    """The pass.

    Attributes:
        kernels: ours, by op.
        devices: device types whose ops run on the CPU.
    """

    kernels: Mapping[str, Sequence[KernelSpec]]
    devices: tuple[str, ...] = ("cpu",)
    name: str = "onednn_pack"

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph with weights packed that several devices of this process multiply by."""
        options: Mapping[str, Any] = context.options  # type: ignore[attr-defined]  # PassContext
        copies = options.get("shared_copies", ())
        home = {name: i for i, names in enumerate(copies) for name in names}
        editor = edit(graph, self.kernels)
        groups = self._groups(graph, home) if home else ()
        found = [(op, size) for ops in groups for op, size in _worth(graph, ops)]
        for op, size in found:
            _pack(editor, op, _problem(graph, op), size)
        return editor.finish() if found else graph

    def _groups(self, graph: Graph, home: Mapping[str, int]) -> Iterator[list[Op]]:
        """Products of parts of one logical op, each by its device's copy of one weight."""
        groups: dict[object, list[Op]] = {}
        for type_ in ("matmul", "onednn_matmul"):
            for op in graph.of_type(type_):
                logical, _, rank = op.name.rpartition("@")
                ours = op.placement.device_type in self.devices
                copy = home.get(op.inputs[1].op)
                if rank.isdigit() and ours and copy is not None:
                    groups.setdefault((logical, copy), []).append(op)
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
    """Whether the rows of all devices may be multiplied at once, which packs the weight once."""
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


def _pack(editor: Any, op: Op, problem: Problem, size: int) -> None:
    logical, _, rank = op.name.rpartition("@")
    (b, *bias), attrs = op.inputs[1:], attrs_of(problem)
    how = {**attrs, "transpose_b": op.attrs["transpose_b"], "bias": bool(bias), "size": size}
    pack = Op(f"{logical}/packed@{rank}", PACK, (b,), Attrs(how), op.placement)
    editor.add(pack, (tensor_type((size,), editor.type_of(b).dtype),), op, -0.5)
    product = changed(op, PRODUCT, attrs, op.inputs[0], pack.output(), *bias)
    editor.add(product, editor.types[op.name], op)
