"""A plan bound to memory and kernels: what one step runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from flow_core.device import Driver, Launch
from flow_core.plan import Buffer, Plan, Task, check_no_deadlock
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load
from flow_core.sbp import Region


class KernelSource(Protocol):
    """Where the runtime looks up kernels: the registry."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """The kernel for a query."""


class Executable:
    """A loaded plan.  Binding happens here, once; `run` calls launches only.

    Args:
        plan: the plan.
        kernels: the registry.
        driver: driver of a device, by its text form.
        variable: the session's array of a variable's part on a device, by the variable's
            name, the device's text form and the part's region (None for all of it).
        finished: observers, called with the step's number and its statistics: job and seconds.
        step: the step counter, an int64 scalar that plans of one job share; None for its own.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: KernelSource,
        driver: Callable[[str], Driver],
        variable: Callable[[str, str, Region | None], Any],
        finished: Sequence[Callable[[int, Mapping[str, Any]], object]] = (),
        step: Any = None,
    ) -> None:
        check_no_deadlock(plan.registers)
        self.plan = plan
        self.step = np.zeros((), np.int64) if step is None else step
        self._kernels = kernels
        self._finished = tuple(finished)
        self._driver = driver(plan.arenas[0].device)
        self.arenas = {a.device: driver(a.device).allocate(a.nbytes) for a in plan.arenas}
        self._arrays = [self._array(b, variable) for b in plan.buffers]
        self.feeds = tuple(self._arrays[i] for i in plan.feeds)
        self.fetches = tuple(self._arrays[i] for i in plan.fetches)
        self._driver.compile(self.bind(plan.prologue))()
        self._launch = self._driver.compile(self.bind(plan.tasks))

    def _array(self, buffer: Buffer, variable: Callable[[str, str, Region | None], Any]) -> Any:
        if buffer.kind == "variable":
            name = buffer.name.rsplit(":", 1)[0]
            logical, region = self.plan.shards.get(name, (name, None))
            return variable(logical, buffer.device, region).reshape(buffer.type.shape)
        arena = self.arenas[buffer.device]
        return arena.view(buffer.offset, buffer.type.shape, buffer.type.dtype.numpy)

    def bind(self, tasks: Sequence[Task]) -> list[Launch]:
        """The launches of some tasks, flat and in order."""
        launches: list[Launch] = []
        for task in tasks:
            launches.extend(self.bind_task(task))
        return launches

    def bind_task(self, task: Task) -> Sequence[Launch]:
        """The launches of one task."""
        buffers, arrays = self.plan.buffers, self._arrays
        find = partial(self._kernels.find_kernel, device_type=task.device.split(":")[0])
        query = KernelQuery(
            task.type,
            task.attrs,
            tuple([buffers[i].type for i in task.inputs]),
            tuple([buffers[i].type for i in task.outputs]),
            find,
        )
        context = BindContext(
            query=query,
            inputs=tuple([arrays[i] for i in task.inputs]),
            outputs=tuple([arrays[i] for i in task.outputs]),
            workspace=None if task.workspace is None else arrays[task.workspace],
            step=self.step,
            seed=task.seed,
        )
        bound = load(find(query).load)(context)
        return bound if isinstance(bound, tuple | list) else (bound,)

    def run(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        """One step: copies the feeds in, launches, copies the results out."""
        started = time.perf_counter() if self._finished else 0.0
        driver = self._driver
        for target, source in zip(self.feeds, feeds, strict=True):
            driver.copy_in(target, source)
        self._launch()
        self.step += 1
        results = tuple([driver.copy_out(array) for array in self.fetches])
        for observer in self._finished:
            seconds = time.perf_counter() - started
            observer(int(self.step) - 1, {"job": self.plan.job, "seconds": seconds})
        return results

    def measured(self) -> Mapping[str, int]:
        """Bytes really allocated, by device: what the plan predicted, to the byte."""
        return {device: arena.nbytes for device, arena in self.arenas.items()}
