"""A rewriter that checks whether a backend's kernels accept an op before it inserts the op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flow_core.ir.graph import Graph, Op, TensorType
from flow_core.ir.rewriter import Rewriter
from flow_core.plugins.specs import KernelQuery, KernelSpec


class KernelRewriter(Rewriter):
    """A rewriter that knows the kernels of a backend.

    Args:
        graph: the graph to change.
        kernels: the backend's kernels, by op type.
    """

    def __init__(self, graph: Graph, kernels: Mapping[str, Sequence[KernelSpec]]) -> None:
        super().__init__(graph)
        self.kernels = kernels

    def query(self, op: Op, types: tuple[TensorType, ...]) -> KernelQuery:
        """Return the kernel query for an op, which need not be in the graph, and output types."""
        return KernelQuery(op.type, op.attrs, tuple(map(self.type_of, op.inputs)), types)

    def accepts(self, op: Op, types: tuple[TensorType, ...]) -> bool:
        """Return whether a kernel of the backend accepts an op, which need not be in the graph."""
        kernels = self.kernels.get(op.type, ())
        query = self.query(op, types) if kernels else None
        return query is not None and any(k.accepts is None or k.accepts(query) for k in kernels)

    def replace_if_accepted(
        self, old: Op, new: Op, types: tuple[TensorType, ...] | None = None
    ) -> bool:
        """Replace an op if a kernel of the backend accepts the new op; return whether it does."""
        accepted = self.accepts(new, self.types[old.name] if types is None else types)
        if accepted:
            self.replace(old, new, types)
        return accepted
