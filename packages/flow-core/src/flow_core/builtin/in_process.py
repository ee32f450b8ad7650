"""The communicator (comm) of one process: copies and combines the devices' arrays, counts bytes.

All devices share the memory of the process, as CPU devices and emulated GPUs do.  A plan may assign
one array to several devices that need the same value: the array is filled once, and transfers are
counted as if each device had an array of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flow_core.builtin.calls import call
from flow_core.builtin.numpy_driver import NumpyArena
from flow_core.comm.exchange import COMBINE, DevicePair, Exchange, check_arrays, neutral
from flow_core.comm.gathers import GatherPlan, block_gathers, reductions
from flow_core.device import Comm, Launch
from flow_core.plugins.specs import Available
from flow_core.plugins.staging import StagedComm
from flow_core.sharding.topology import Device


def bootstrap() -> Available:
    """Report that exactly one process, this one, takes part."""
    return Available(1, "this process")


@dataclass(slots=True)
class Meter:
    """Traffic of each launch of one exchange, and the number of launches."""

    # Bytes per (from, to) pair of devices, summed over the copied arrays.
    links: Counter[DevicePair] = field(default_factory=Counter)
    launches: int = 0  # number of completed launches

    def count(self) -> None:
        """Count a launch; the last callable of each launch."""
        self.launches += 1


class InProcessComm(Comm):
    """Comm of the devices of one process that store their data in numpy arrays.

    Attributes:
        devices: all devices that the comm connects.
        local: the devices of this process, which are all devices.
    """

    name = "in_process"

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = self.local = tuple(devices)
        self._meters: list[Meter] = []

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """Return the launches that run an exchange between fixed arrays.

        Raises `PlanError` if the arrays do not match the exchange.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        binding = _Binding(exchange, inputs, outputs, Meter())
        launches = tuple(binding.launches())
        if not binding.meter.links:
            return launches
        self._meters.append(binding.meter)
        return (*launches, binding.meter.count)

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the bytes sent between devices so far, by (from, to)."""
        total: Counter[DevicePair] = Counter()
        for meter in self._meters:
            for link, nbytes in meter.links.items():
                total[link] += nbytes * meter.launches
        return {link: nbytes for link, nbytes in total.items() if nbytes}


def staged(devices: Sequence[Device]) -> StagedComm:
    """Return the comm of the devices of one process, whatever their types."""
    return StagedComm("staged", InProcessComm(devices), NumpyArena, shares=True)


@dataclass(slots=True)
class _Binding:
    """Binding of one exchange; every copy adds its bytes to the meter."""

    exchange: Exchange
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    meter: Meter

    def launches(self) -> Iterator[Launch]:
        combine = COMBINE[self.exchange.combine]
        if self.exchange.collective == "all_reduce":
            yield from self._all_reduce(combine)
            return
        for index, operation in self.exchange.fills:
            out = self.outputs[index]
            value = neutral(operation, self.exchange.outputs[index].dtype)
            yield partial(out.fill, np.array(value, out.dtype))
        done: set[object] = set()
        for plan in block_gathers(self.exchange):
            (target, out), *parts = self._located(plan)
            launches = list(self._gather(combine, parts, target, out))
            if _where(out) not in done:  # otherwise several devices share it, and it is filled
                yield from launches
            done.add(_where(out))

    def _all_reduce(self, combine: Any) -> Iterator[Launch]:
        """Combine the parts of each device's chunk in rank order; copy the result to the others."""
        for reduction in reductions(self.exchange):
            (target, out), *parts = self._located(reduction.combine)
            if reduction.member in self.exchange.summed:
                yield from self._take_sum(parts, target, out)
            else:
                yield from self._gather(combine, parts, target, out)
            for copy in reduction.copies:
                (target, out), (source, part) = self._located(copy)
                yield from self._copy(source, part, target, out)

    def _located(self, plan: GatherPlan) -> list[tuple[Device, Any]]:
        """Return the devices and views of a gather's target and parts."""
        return [
            (ref.device(self.exchange), ref.view(ref.array(self.inputs, self.outputs)))
            for ref in (plan.target, *plan.parts)
        ]

    def _take_sum(
        self, parts: Sequence[tuple[Device, Any]], target: Device, out: Any
    ) -> Iterator[Launch]:
        """Copy a sum that one array already holds, but count the bytes of all parts as sent."""
        for source, part in parts:
            self._note(source, target, part)
        yield from self._copy(target, parts[0][1], target, out)

    def _gather(
        self, combine: Any, parts: Sequence[tuple[Device, Any]], target: Device, out: Any
    ) -> Iterator[Launch]:
        """Combine the parts in order, the first two in one call; a single part is copied.

        The target can be one of the parts.
        """
        if len(parts) == 1:
            yield from self._copy(*parts[0], target, out)
            return
        for source, part in parts:
            self._note(source, target, part)
        late = any(_where(part) == _where(out) for _, part in parts[2:])
        sums = np.empty_like(out) if late else out  # a late part must be read before `out` changes
        yield call(combine, parts[0][1], parts[1][1], out=sums)
        for _, part in parts[2:-1]:
            yield call(combine, sums, part, out=sums)
        if len(parts) > 2:
            yield call(combine, sums, parts[-1][1], out=out)

    def _copy(self, source: Device, part: Any, target: Device, out: Any) -> Iterator[Launch]:
        """Count the bytes of a part, and copy it unless source and target share its memory."""
        self._note(source, target, part)
        if _where(part) != _where(out):
            yield partial(np.copyto, out, part)

    def _note(self, source: Device, target: Device, part: Any) -> None:
        if source != target:
            self.meter.links[source, target] += part.nbytes


def _where(array: Any) -> object:
    """Return a key that is equal for arrays with the same memory, shape and strides."""
    return array.ctypes.data, array.shape, array.strides
