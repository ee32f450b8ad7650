"""What a pass is, and how a pipeline of passes runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flow_core.ir.graph import Graph, verify
from flow_core.plugins.specs import OpSpec


@dataclass(frozen=True, slots=True)
class PassContext:
    """What passes may know besides the graph.

    Attributes:
        specs: the ops, by type.
        options: what the session and the job ask of single passes, by the passes' own names.
    """

    specs: Mapping[str, OpSpec]
    options: Mapping[str, Any] = field(default_factory=dict)


class Pass(Protocol):
    """A frozen dataclass of its options, with a name."""

    @property
    def name(self) -> str:
        """Unique name."""

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The rewritten graph."""


@dataclass(frozen=True, slots=True)
class PassTiming:
    """What one pass did: ops before and after, seconds."""

    name: str
    before: int
    after: int
    seconds: float


@dataclass(slots=True)
class Pipeline:
    """Runs passes in order and keeps the time of each."""

    passes: Sequence[Pass]
    verify_each: bool = False
    timings: list[PassTiming] = field(default_factory=list)

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """The graph after all passes."""
        for item in self.passes:
            started = time.perf_counter()
            result = item.apply(graph, context)
            seconds = time.perf_counter() - started
            self.timings.append(PassTiming(item.name, len(graph), len(result), seconds))
            if self.verify_each:
                verify(result)
            graph = result
        return graph
