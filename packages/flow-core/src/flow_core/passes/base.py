"""The interface of graph passes, and the pipeline that runs them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from flow_core.ir.graph import NO_ATTRS, Graph, Op, TensorType, verify
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec


class KernelLookup(Protocol):
    """The lookup of kernels: the registry."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """Return the kernel for a query, or raise `KernelNotFoundError`."""

    def accepting_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec | None:
        """Return the kernel for a query, or None."""


@dataclass(frozen=True, slots=True)
class PassContext:
    """Input of passes besides the graph.

    Attributes:
        specs: the op specs, by type.
        options: settings of session and job for single passes, by option name.
        kernels: the lookup of kernels; None if every op is assumed to have one, as in a graph that
            is not compiled for devices.
    """

    specs: Mapping[str, OpSpec]
    options: Mapping[str, Any] = field(default_factory=dict)
    kernels: KernelLookup | None = None

    def has_kernel(
        self, op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> bool:
        """Whether a kernel of the device type of an op accepts it with some types; views need none.

        Ask before creating an op that a backend need not support: keep the original ops if there
        is no kernel.

        Args:
            op: the op, which need not be in a graph.
            inputs: types of its inputs; those of a whole tensor in a logical graph.
            outputs: types of its outputs.
        """
        if self.kernels is None or self.specs[op.type].is_view(len(inputs)):
            return True
        device = op.placement.device_type
        find = partial(self.kernels.find_kernel, device_type=device)
        settings = self.options.get("kernels", NO_ATTRS)
        query = KernelQuery(op.type, op.attrs, tuple(inputs), tuple(outputs), find, settings)
        return self.kernels.accepting_kernel(query, device) is not None


class Pass(Protocol):
    """A graph pass: a frozen dataclass of its options, with a name."""

    @property
    def name(self) -> str:
        """Unique name."""

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph."""


@dataclass(frozen=True, slots=True)
class PassTiming:
    """Statistics of one pass: number of ops before and after, seconds."""

    name: str
    before: int
    after: int
    seconds: float


@dataclass(slots=True)
class Pipeline:
    """Run passes in order and record the time of each."""

    passes: Sequence[Pass]
    verify_each: bool = False
    timings: list[PassTiming] = field(default_factory=list)

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph after all passes."""
        for item in self.passes:
            started = time.perf_counter()
            result = item.apply(graph, context)
            seconds = time.perf_counter() - started
            self.timings.append(PassTiming(item.name, len(graph), len(result), seconds))
            if self.verify_each:
                verify(result)
            graph = result
        return graph
