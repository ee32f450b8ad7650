"""What the passes have in common that have cuDNN plan what they find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.ir.graph import Attrs, Graph, Op, Value
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Choice, Search

Form = tuple[Op, tuple[Op, ...], Op]
"""The op in whose place a new one stands, the ops that go, and the new one."""


@dataclass(frozen=True)
class CudnnPass(ABC):
    """A pass.

    Attributes:
        plans: gives what chooses plans; None where there is no cuDNN.
        device: the device type whose ops it replaces.
    """

    plans: Callable[[], DnnPlans | None]
    device: str = "gpu"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """The graph with ops of cuDNN; the library is started only for what it may take."""
        found = self.find(graph)
        wanted = context.options.get("cudnn", {}).get("enable_cudnn", True)
        plans = self.plans() if found and wanted else None
        return graph if plans is None else self.rewritten(graph, found, plans, context.options)

    @abstractmethod
    def find(self, graph: Graph) -> Sequence[Any]:
        """What may become ops of cuDNN."""

    @abstractmethod
    def rewritten(
        self, graph: Graph, found: Sequence[Any], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """The graph with ops of cuDNN in place of what was found, as far as there are plans."""

    def of(self, graph: Graph, *types: str) -> list[Op]:
        """The ops of some types on the device."""
        ops = (op for type_ in types for op in graph.of_type(type_))
        return [op for op in ops if op.placement.device_type == self.device]


def search(options: Mapping[str, Any], **more: Any) -> Search:
    """Which plans a job allows, by OneFlow's settings that are for all problems."""
    wishes: Mapping[str, Any] = options.get("cudnn", {})
    return Search(
        deterministic=bool(wishes.get("cudnn_conv_use_deterministic_algo_only", False)),
        limit=int(wishes.get("cudnn_buf_limit_mbyte", 1024)) << 20,
        **more,
    )


def new_op(op: Op, type_: str, inputs: tuple[Value, ...], **attrs: Any) -> Op:
    """An op of another type with the name and place of one that is there."""
    return Op(op.name, type_, inputs, Attrs(attrs), op.placement, control=op.control)


def with_attrs(op: Op, **attrs: Any) -> Op:
    """An op with some attributes changed."""
    return new_op(op, op.type, op.inputs, **{**op.attrs, **attrs})


def planned(op: Op, choice: Choice) -> Op:
    """An op with the plan that was chosen for it."""
    return with_attrs(op, plan=choice.plan, workspace=choice.workspace)


def only_reader(
    graph: Graph, readers: Mapping[Value, Sequence[Op]], value: Value, type_: str
) -> Op | None:
    """The op of a type that alone reads a value, which is no result."""
    found = readers.get(value, ())
    alone = len(found) == 1 and found[0].type == type_ and value not in graph.results
    return found[0] if alone else None
