"""The seconds of the tasks of a plan, by a cost model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from flow_core.comm.exchange import BOXING
from flow_core.costs.exchanges import Ends, exchange_cost
from flow_core.costs.model import HOST, CostModel, DeviceModel, Work, kernel_key
from flow_core.ir.graph import TensorType
from flow_core.plan import Plan, Task
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of the tasks of a plan.

    Attributes:
        accelerators: device types that do not compute on the cores of the host.
        scale: factors on the rooflines of kernels that were not measured, by op type.
    """

    plan: Plan
    specs: Mapping[str, OpSpec]
    model: CostModel
    accelerators: Collection[str] = ()
    scale: Mapping[str, float] = field(default_factory=dict)

    def is_hosted(self, device: Device) -> bool:
        """Return whether a device is a core of the host."""
        return self.model.computes_on_host(device.type, self.accelerators)

    def seconds(self, task: Task) -> float:
        """Return the time of a task: as measured, or as predicted by a roofline."""
        if task.type == BOXING:
            ends = Ends(self.devices(task), *self._types(task))
            return exchange_cost(self.model, self._device(task), task.attrs, ends)
        known = self.model.kernels.get(self.key(task)) if self.model.kernels else None
        return self.roofline(task) * self.scale.get(task.type, 1.0) if known is None else known

    def roofline(self, task: Task) -> float:
        """Return the time of a kernel by the roofline of its device."""
        device, work = self._device(task), self.work(task)
        return device.launch + device.seconds(work.flops, work.nbytes)

    def measured_scale(self) -> dict[str, float]:
        """Return how many times as long as their rooflines say kernels take, by op type."""
        ratios: dict[str, list[float]] = {}
        for task in filter(self.is_measured, self.plan.tasks):
            ratios.setdefault(task.type, []).append(self.seconds(task) / self.roofline(task))
        return {type_: median(found) for type_, found in ratios.items()}

    def is_measured(self, task: Task) -> bool:
        """Return whether the kernel of a task was measured."""
        return task.type != BOXING and self.key(task) in self.model.kernels

    def key(self, task: Task) -> str:
        return kernel_key(self.work(task), task.device.type, self.threads)

    @property
    def threads(self) -> int:
        return self.plan.cores.kernels or 1

    def work(self, task: Task) -> Work:
        return Work(self.specs[task.type], task.attrs, *self._types(task))

    def devices(self, task: Task) -> tuple[Device, ...]:
        """Return the devices that take part in a task."""
        if task.type != BOXING:
            return (task.device,)
        buffers = self.plan.buffers
        return tuple(dict.fromkeys(buffers[i].device for i in (*task.inputs, *task.outputs)))

    def _types(self, task: Task) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        buffers = self.plan.buffers
        inputs = tuple([buffers[i].type for i in task.inputs])
        return inputs, tuple([buffers[i].type for i in task.outputs])

    def _device(self, task: Task) -> DeviceModel:
        return self.model.device(HOST if self.is_hosted(task.device) else task.device.type)
