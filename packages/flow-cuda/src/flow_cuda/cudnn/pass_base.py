"""Base class and helpers of the passes that replace ops by cuDNN graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op, option
from flow_core.authoring.specs import Graph, Op
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Choice, Search

Form = tuple[Op, tuple[Op, ...], Op]
"""The op to replace, the ops to drop, and the new op."""


@dataclass(frozen=True)
class CudnnPass(ABC):
    """A pass that asks cuDNN for plans."""

    # The function that returns the `DnnPlans`, or None if cuDNN is not available.
    plans: Callable[[], DnnPlans | None]
    device: str = "gpu"  # the device type whose ops the pass replaces
    enabled: bool = option(True, "whether ops are replaced by cuDNN's", "enable_cudnn")
    workspace_mb: int = option(
        1024, "the largest workspace of a plan, in megabytes", "cudnn_buf_limit_mbyte"
    )
    deterministic: bool = option(
        False,
        "whether plans must be reproducible to the bit",
        "cudnn_conv_use_deterministic_algo_only",
    )

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with ops of cuDNN; load the library only if there are candidates."""
        rewriter = Rewriter(graph)
        found = self.find(rewriter)
        plans = self.plans() if found and self.enabled else None
        if plans is not None:
            self.rewrite(rewriter, found, plans, context)
        return rewriter.finish()

    @abstractmethod
    def find(self, rewriter: Rewriter) -> Sequence[Any]:
        """Return the candidates in the graph."""

    @abstractmethod
    def rewrite(
        self, rewriter: Rewriter, found: Sequence[Any], plans: DnnPlans, context: PassContext
    ) -> None:
        """Replace the candidates that cuDNN has plans for."""

    def of(self, graph: Graph, *types: str) -> list[Op]:
        """Return the ops that have one of the types and run on the pass's device type."""
        ops = (op for type_ in types for op in graph.of_type(type_))
        return [op for op in ops if op.placement.device_type == self.device]

    def search(self, **more: Any) -> Search:
        """Return the plan search that the options describe, for problems of every kind."""
        return Search(deterministic=self.deterministic, limit=self.workspace_mb << 20, **more)


def planned(op: Op, choice: Choice) -> Op:
    """Return an op with its chosen plan as attributes."""
    attrs = {**op.attrs, "plan": choice.plan, "workspace": choice.workspace}
    return like_op(op, op.type, attrs, op.inputs)
