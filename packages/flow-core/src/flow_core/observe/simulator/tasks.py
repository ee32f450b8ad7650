"""The seconds of the tasks of a plan, by a cost model, and the measurement of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from flow_core.comm.exchange import BOXING
from flow_core.compiler.request import Compiled
from flow_core.costs.exchanges import Ends, exchange_cost
from flow_core.costs.model import HOST, CostModel, DeviceModel, Work, kernel_key
from flow_core.frontend.job.function import AnyJob
from flow_core.ir.graph import TensorType
from flow_core.observe.measure import measure
from flow_core.plan import Plan, Task
from flow_core.plugins.specs import OpSpec
from flow_core.runtime.timed import CpuTimedExecutable, TimedExecutable
from flow_core.sharding.topology import Device

STEPS = 40
"""The largest number of steps in which kernels are measured."""


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of the tasks of a plan.

    Attributes:
        plan: the plan.
        specs: op specs of the registry.
        model: the cost model.
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
        """Return the key of a task's kernel."""
        return kernel_key(self.work(task), task.device.type, self.threads)

    @property
    def threads(self) -> int:
        """The number of threads of a kernel."""
        return self.plan.cores.kernels or 1

    def work(self, task: Task) -> Work:
        """Return the op of a task with its types."""
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


def measured_kernels(
    job: AnyJob,
    compiled: Compiled,
    costs: TaskCosts,
    show: Callable[[str], object] = lambda _: None,
) -> dict[str, float]:
    """Run a few steps of a plan on random inputs; return the seconds of its kernels by key.

    The session's variables are not changed.  The shortest time of each task counts, which other
    programs on the machine delay least, of kernels with one thread the CPU time; kernels with
    equal keys cost the median of their tasks.
    """
    hosted = all(costs.is_hosted(arena.device) for arena in costs.plan.arenas)
    alone = hosted and costs.threads == 1 and costs.plan.workers <= 1
    kind = CpuTimedExecutable if alone else TimedExecutable
    steps = measure(job, 0, show, min, compiled, STEPS, kind)
    found: dict[str, list[float]] = {}
    for span in steps.spans:
        task = costs.plan.tasks[span.task]
        if task.type != BOXING:
            found.setdefault(costs.key(task), []).append(span.seconds)
    return {key: median(seconds) for key, seconds in found.items()}
