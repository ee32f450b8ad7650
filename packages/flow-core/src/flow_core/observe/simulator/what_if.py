"""What-if: the step of a plan with other links, a slow device or link, or a larger batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flow_core.base.errors import FlowError
from flow_core.comm.exchange import BOXING
from flow_core.costs.clock import Step, simulate_step
from flow_core.costs.model import CostModel
from flow_core.plan import Plan
from flow_core.sharding.topology import Device

SLOW_DEVICE, SLOW_LINK = 1.5, 4.0
"""How many times as long the slow device computes, and the exchanges of the slow link take."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the table."""

    name: str  # what differs
    seconds: float | None  # the time of the step; None if it cannot be simulated
    samples: float = 1.0  # the size of the batch, as a multiple of the program's
    note: str = ""  # what exactly differs, or why the case cannot be simulated


def what_if(step: Step, processes: int, larger: Callable[[], Plan]) -> Iterator[Case]:
    """Yield the cases; except for the larger batch, the plan is the same."""
    costs = step.costs
    try:
        plan = larger()
    except FlowError as error:
        yield Case("twice the batch", None, 2.0, str(error).partition("\n")[0])
    else:
        other = replace(costs, plan=plan, scale=costs.measured_scale())
        seconds = simulate_step(other, processes).seconds
        yield Case("twice the batch", seconds, 2.0, "a plan of its own")
    if any(task.type == BOXING for task in costs.plan.tasks):
        changed = replace(costs, model=with_bandwidth(costs.model, 0.5))
        seconds = simulate_step(changed, processes).seconds
        yield Case("half the bandwidth", seconds, 1.0, "of all links")
    yield from _slow_device(step, processes)
    yield from _slow_link(step, processes)


def with_bandwidth(model: CostModel, factor: float) -> CostModel:
    """Return a model whose links have another bandwidth."""
    classes = tuple(
        replace(link, bandwidth=link.bandwidth * factor, uplink=link.uplink * factor)
        for link in model.links.classes
    )
    return replace(model, links=replace(model.links, classes=classes))


def _slow_device(step: Step, processes: int) -> Iterator[Case]:
    tasks, busy = step.costs.plan.tasks, dict[Device, float]()
    for task, (start, end) in zip(tasks, step.spans, strict=True):
        if task.type != BOXING:
            busy[task.device] = busy.get(task.device, 0.0) + end - start
    if not busy:
        return
    device = max(busy, key=busy.__getitem__)
    slower = {
        i: SLOW_DEVICE for i, t in enumerate(tasks) if t.type != BOXING and t.device == device
    }
    found = simulate_step(step.costs, processes, slower)
    note = f"kernels of {device} take {SLOW_DEVICE:g} times as long"
    yield Case("a slow device", found.seconds, 1.0, note)


def _slow_link(step: Step, processes: int) -> Iterator[Case]:
    """Yield the case in which the two devices whose exchanges take longest have a slow link."""
    tasks, busy = step.costs.plan.tasks, dict[tuple[Device, ...], float]()
    pairs: dict[int, tuple[Device, ...]] = {}
    for i, (task, (start, end)) in enumerate(zip(tasks, step.spans, strict=True)):
        devices = step.costs.devices(task) if task.type == BOXING else ()
        if len(devices) > 1:
            pairs[i] = devices
            busy[devices[:2]] = busy.get(devices[:2], 0.0) + end - start
    if not busy:
        return
    a, b = max(busy, key=busy.__getitem__)
    slower = {i: SLOW_LINK for i, devices in pairs.items() if a in devices and b in devices}
    found = simulate_step(step.costs, processes, slower)
    note = f"exchanges of {a} with {b} take {SLOW_LINK:g} times as long"
    yield Case("a slow link", found.seconds, 1.0, note)
