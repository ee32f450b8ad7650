"""The interface of graph passes, and the pipeline that runs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from flow_core.ir.graph import NO_ATTRS, Graph, Op, TensorType
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec


class KernelLookup(Protocol):
    """The interface through which passes look up kernels; the registry implements it."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """Return the kernel for a query, or raise `KernelNotFoundError`."""

    def accepting_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec | None:
        """Return the kernel for a query, or None."""


@dataclass(frozen=True, slots=True)
class PassContext:
    """The inputs that a pass receives in addition to the graph.

    Attributes:
        kernels: the lookup of kernels; None if every op is assumed to have a kernel, as in a graph
            that is not compiled for devices.
        settings: the settings of kernels, which a query of a kernel contains.
        shared_copies: in a physical graph, the groups of copies of variables of which devices with
            a common memory are to share one.
    """

    specs: Mapping[str, OpSpec]
    kernels: KernelLookup | None = None
    settings: Mapping[str, Any] = NO_ATTRS
    shared_copies: tuple[tuple[str, ...], ...] = ()

    def has_kernel(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> bool:
        """Return whether the op's device type has a kernel that accepts the op with these types.

        The result is also True for views, which need no kernel.  A pass calls this method before it
        creates an op that a backend need not support, and keeps the original ops if there is no
        kernel.

        Args:
            op: the op, which need not be in a graph.
            inputs: types of the op's inputs; in a logical graph, the types of whole tensors.
            outputs: types of the op's outputs.
        """
        if self.kernels is None or self.specs[op.type].is_view(len(inputs)):
            return True
        device = op.placement.device_type
        find = partial(self.kernels.find_kernel, device_type=device)
        query = KernelQuery(op.type, op.attrs, tuple(inputs), tuple(outputs), find, self.settings)
        return self.kernels.accepting_kernel(query, device) is not None


class Pass(Protocol):
    """A graph pass: a frozen dataclass with a name, and with fields made by `option`."""

    @property
    def name(self) -> str:
        """The pass's unique name."""

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph."""


@dataclass(frozen=True, slots=True)
class PassTiming:
    """Statistics of a pass or stage of compilation."""

    name: str  # of the pass or stage
    before: int  # the number of ops before it
    after: int  # the number of ops after it
    seconds: float
    added: Mapping[str, int] = field(default_factory=dict)  # numbers of ops, by type
    removed: Mapping[str, int] = field(default_factory=dict)  # likewise
    # Ops with the same name and other contents, by new type.
    rewritten: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Pipeline:
    """A sequence of passes to run in order; statistics of each pass are recorded."""

    passes: Sequence[Pass]
    timings: list[PassTiming] = field(default_factory=list)

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph after all passes."""
        for item in self.passes:
            started = time.perf_counter()
            result = item.apply(graph, context)
            seconds = time.perf_counter() - started
            sizes = len(graph), len(result)
            self.timings.append(PassTiming(item.name, *sizes, seconds, *_changes(graph, result)))
            graph = result
        return graph


def _changes(before: Graph, after: Graph) -> tuple[Mapping[str, int], ...]:
    """Return the numbers of added, removed and rewritten ops, by type.

    Graphs share the ops that a pass leaves unchanged, so that most comparisons are of identities.
    """
    if before is after:
        return {}, {}, {}
    old, new = before.ops, after.ops
    changed = [op for name, op in new.items() if old.get(name) is not op]
    return (
        Counter(op.type for op in changed if op.name not in old),
        Counter(op.type for name, op in old.items() if name not in new),
        Counter(op.type for op in changed if op.name in old and old[op.name] != op),
    )
