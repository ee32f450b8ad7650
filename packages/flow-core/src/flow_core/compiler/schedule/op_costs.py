"""The predicted seconds of the ops of a physical graph, by the cost model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flow_core.comm.exchange import BOXING
from flow_core.costs.exchanges import Ends, exchange_cost
from flow_core.costs.model import HOST, CostModel, DeviceModel, Work
from flow_core.ir.graph import Graph, Op
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.topology import Placement, devices_of


@dataclass(frozen=True, slots=True)
class OpCosts:
    """The costs of the ops of a physical graph."""

    graph: Graph
    specs: Mapping[str, OpSpec]
    model: CostModel
    accelerators: Collection[str] = ()  # device types that do not compute on the cores of the host
    threads: int = 1  # of a kernel

    def seconds(self, op: Op) -> float:
        if op.type == BOXING:
            return self._exchange(op)
        inputs, outputs = self.graph.input_types(op), self.graph.types[op.name]
        work = Work(self.specs[op.type], op.attrs, inputs, outputs)
        device = self._device(op.placement)
        return self.model.kernel_seconds(work, op.placement.device_type, device, self.threads)

    def is_product(self, op: Op) -> bool:
        """Return whether an op has much arithmetic, for which libraries use several cores."""
        return op.type != BOXING and self.specs[op.type].work is not None

    def _device(self, placement: Placement) -> DeviceModel:
        type_ = placement.device_type
        hosted = self.model.computes_on_host(type_, self.accelerators)
        return self.model.device(HOST if hosted else type_)

    def _exchange(self, op: Op) -> float:
        places = ((self.graph.ops[v.op].placement, v.index) for v in op.inputs)
        senders = (place.device(k % place.size) for place, k in places)
        devices = tuple(dict.fromkeys((*senders, *devices_of(op.placement))))
        ends = Ends(devices, self.graph.input_types(op), self.graph.types[op.name])
        return exchange_cost(self.model, self._device(op.placement), op.attrs, ends)
