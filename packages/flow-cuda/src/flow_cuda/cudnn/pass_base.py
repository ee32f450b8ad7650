"""Base class and helpers of the passes that replace ops by cuDNN graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.ir.graph import Attrs, Graph, Op, Value
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Choice, Search

Form = tuple[Op, tuple[Op, ...], Op]
"""The op that is replaced, the ops that are removed, and the new op."""


@dataclass(frozen=True)
class CudnnPass(ABC):
    """A pass that replaces ops by cuDNN ops.

    Attributes:
        plans: returns the planner; None if cuDNN is not available.
        device: the device type of the ops to replace.
    """

    plans: Callable[[], DnnPlans | None]
    device: str = "gpu"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """Return the graph with cuDNN ops; the library is loaded only if there are candidates."""
        found = self.find(graph)
        wanted = context.options.get("cudnn", {}).get("enable_cudnn", True)
        plans = self.plans() if found and wanted else None
        return graph if plans is None else self.rewritten(graph, found, plans, context.options)

    @abstractmethod
    def find(self, graph: Graph) -> Sequence[Any]:
        """Return the candidates for replacement."""

    @abstractmethod
    def rewritten(
        self, graph: Graph, found: Sequence[Any], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """Return the graph with the candidates replaced for which a plan exists."""

    def of(self, graph: Graph, *types: str) -> list[Op]:
        """Return the ops of some types on the device."""
        ops = (op for type_ in types for op in graph.of_type(type_))
        return [op for op in ops if op.placement.device_type == self.device]


def search(options: Mapping[str, Any], **more: Any) -> Search:
    """Return the plans that a job allows, from the OneFlow settings that apply to all problems."""
    wishes: Mapping[str, Any] = options.get("cudnn", {})
    return Search(
        deterministic=bool(wishes.get("cudnn_conv_use_deterministic_algo_only", False)),
        limit=int(wishes.get("cudnn_buf_limit_mbyte", 1024)) << 20,
        **more,
    )


def new_op(op: Op, type_: str, inputs: tuple[Value, ...], **attrs: Any) -> Op:
    """Return an op of another type with the name and placement of an existing one."""
    return Op(op.name, type_, inputs, Attrs(attrs), op.placement, control=op.control)


def with_attrs(op: Op, **attrs: Any) -> Op:
    """Return an op with some attributes changed."""
    return new_op(op, op.type, op.inputs, **{**op.attrs, **attrs})


def planned(op: Op, choice: Choice) -> Op:
    """Return an op with the chosen plan."""
    return with_attrs(op, plan=choice.plan, workspace=choice.workspace)


def only_reader(
    graph: Graph, readers: Mapping[Value, Sequence[Op]], value: Value, type_: str
) -> Op | None:
    """Return the only reader of a value if it has the given type and the value is no result."""
    found = readers.get(value, ())
    alone = len(found) == 1 and found[0].type == type_ and value not in graph.results
    return found[0] if alone else None
