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
    """The interface through which passes look up kernels; the registry implements it."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """Return the kernel for a query, or raise `KernelNotFoundError`."""

    def accepting_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec | None:
        """Return the kernel for a query, or None."""


@dataclass(frozen=True, slots=True)
class PassContext:
    """The inputs that a pass receives in addition to the graph.

    Attributes:
        specs: the op specs, by op type.
        options: the settings of the session and the job for individual passes, by option name.
        kernels: the lookup of kernels; None if every op is assumed to have a kernel, as in a graph
            that is not compiled for devices.
    """

    specs: Mapping[str, OpSpec]
    options: Mapping[str, Any] = field(default_factory=dict)
    kernels: KernelLookup | None = None

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
        settings = self.options.get("kernels", NO_ATTRS)
        query = KernelQuery(op.type, op.attrs, tuple(inputs), tuple(outputs), find, settings)
        return self.kernels.accepting_kernel(query, device) is not None


class Pass(Protocol):
    """A graph pass: a frozen dataclass that holds the pass's options and a name."""

    @property
    def name(self) -> str:
        """The pass's unique name."""

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph."""


@dataclass(frozen=True, slots=True)
class PassTiming:
    """Statistics of one pass: the number of ops before and after it, and its time in seconds."""

    name: str
    before: int
    after: int
    seconds: float


@dataclass(slots=True)
class Pipeline:
    """A sequence of passes to run in order; the time of each pass is recorded."""

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
