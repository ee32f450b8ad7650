"""The interface of graph passes, and the pipeline that runs them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flow_core.ir.graph import Graph, verify
from flow_core.plugins.specs import OpSpec


@dataclass(frozen=True, slots=True)
class PassContext:
    """Input of passes besides the graph.

    Attributes:
        specs: the op specs, by type.
        options: settings of session and job for single passes, by option name.
    """

    specs: Mapping[str, OpSpec]
    options: Mapping[str, Any] = field(default_factory=dict)


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
