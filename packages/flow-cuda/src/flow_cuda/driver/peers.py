"""The comm between the devices of one process: copies between them, sums where they are needed.

A GPU fetches what it needs from the memory of another one; only copies go from device to device,
so that it works on machines whose GPUs cannot read one another's memory, too.  All of it is work of
the devices' own streams beside those that compute, and becomes part of a captured step.  What goes
from and to the CPU goes through page-locked memory, by calls of the host, which cut the step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import (
    COMBINE,
    DevicePair,
    Exchange,
    Launch,
    Meter,
    Scratch,
    Steps,
    Strided,
    check_arrays,
    neutral,
    sent_by,
    strided,
)
from flow_core.authoring.collectives import BoxRef, GatherPlan, block_gathers, reductions
from flow_core.authoring.specs import Available, Device, Unavailable
from flow_cuda.device.hardware import Access, Hardware
from flow_cuda.device.launch import CopyLaunch, HostNumber, Queued
from flow_cuda.device.staging import Traffic
from flow_cuda.driver.workbench import GpuWorkbench, row_of

LANE = "boxing"
"""The stream of each device on which exchanges run."""

SIZES = ("FLOW_DIST_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which launchers tell a process how many they started."""

CHUNK = 1 << 20
"""Bytes of a piece of page-locked memory."""

Box = Any
"""A `Strided` of a GPU's memory, or a view of the host's."""

Part = tuple[Device, Box]
"""A box, and the device in whose memory it lies."""


def bootstrap(env: Mapping[str, str] = os.environ) -> Available | Unavailable:
    """Whether this process is the only one of its program."""
    several = next((f"{name}={env[name]}" for name in SIZES if env.get(name, "1") != "1"), "")
    if several:
        return Unavailable(
            f"the program has several processes ({several})",
            "install NCCL: uv add 'flow-dist[cu12]' (or flow-dist[cu13])",
        )
    return Available(1, "the devices of this process")


@dataclass(frozen=True, eq=False)
class SideStreamWork(Queued):
    """Work that a step has on another stream than the one that computes.

    Attributes:
        work: it.
        counts: called whenever it is queued; None where others count.
    """

    work: Queued
    counts: Callable[[], None] | None = None
    lane: str = LANE

    @property
    def hardware(self) -> Hardware:  # type: ignore[override]
        """The device."""
        return self.work.hardware

    @property
    def numbers(self) -> tuple[HostNumber, ...]:  # type: ignore[override]
        """What the work reads of the host."""
        return self.work.numbers

    @property
    def peers(self) -> tuple[Hardware, ...]:  # type: ignore[override]
        """The devices that it copies from."""
        return self.work.peers

    def queue(self, stream: Any) -> None:
        """Queues it on a stream."""
        if self.counts is not None:
            self.counts()
        self.work.queue(stream)

    def touched(self) -> Access:
        """What the work touches."""
        return self.work.touched()


class PeerComm:
    """Joins the devices of this process.

    Args:
        devices: all devices.

    Attributes:
        devices, local: all of them.
    """

    name = "peers"

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = self.local = tuple(devices)
        self._ends: dict[Device, _End] = {}
        self._meters: list[Meter] = []
        self._steps = Steps()

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Sequence[Launch]:
        """The launches of an exchange between fixed arrays.

        Raises:
            PlanError: the arrays are not what the exchange says.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        binding = _Binding(exchange, inputs, outputs, self._ends, Meter(steps=self._steps))
        works = [SideStreamWork(x) if isinstance(x, Queued) else x for x in binding.works()]
        if not binding.meter.links:
            return works
        self._meters.append(binding.meter)
        count = binding.meter.count
        if isinstance(works[0], SideStreamWork):
            return [replace(works[0], counts=count), *works[1:]]
        return [count, *works]

    def sent(self) -> Mapping[DevicePair, int]:
        """Bytes that went from device to device so far, by (from, to)."""
        return sent_by(self._meters)

    def before_step(self) -> None:
        """A step begins."""
        self._steps.running = True

    def after_step(self) -> None:
        """A step is over."""
        self._steps.done += 1
        self._steps.running = False


class _End:
    """A GPU: its memory for parts on their way, which exchanges take turns to use, and its copies.

    Args:
        bench: the device's.
    """

    def __init__(self, bench: GpuWorkbench) -> None:
        self.bench = bench
        self.scratch = Scratch(bench)
        self._traffic: Traffic | None = None

    @property
    def traffic(self) -> Traffic:
        """Copies from and to the host."""
        self._traffic = self._traffic or Traffic(self.bench.hardware, CHUNK)
        return self._traffic

    def like(self, box: Box) -> Strided:
        """Room for the elements of a box, in a row."""
        return self.scratch.row(int(box.size), box.dtype).reshape(tuple(box.shape))


@dataclass(slots=True)
class _Binding:
    """One exchange while it is bound: every part that crosses devices tells the meter."""

    exchange: Exchange
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    ends: dict[Device, _End]
    meter: Meter

    def works(self) -> Iterator[Any]:
        """Its launches, in order."""
        exchange = self.exchange
        places = (*exchange.senders, *exchange.receivers)
        arrays = zip(places, (*self.inputs, *self.outputs), strict=True)
        benches = {d: array.workbench for d, array in arrays if not _is_host(array)}
        for device, bench in benches.items():
            self.ends.setdefault(device, _End(bench)).scratch.reuse()
            for other in benches.values():
                bench.hardware.reach(other.hardware.index)
        yield from self._all_reduce() if exchange.collective == "all_reduce" else self._moves()

    def _moves(self) -> Iterator[Any]:
        exchange = self.exchange
        for index, operation in exchange.fills:
            out, value = self.outputs[index], neutral(operation, exchange.outputs[index].dtype)
            if _is_host(out):
                yield partial(out.fill, np.array(value, out.dtype))
            else:
                yield from self.ends[exchange.receivers[index]].bench.fill(strided(out), value)
        for plan in block_gathers(exchange):
            yield from self._planned(plan)

    def _all_reduce(self) -> Iterator[Any]:
        """Each device combines its chunk, in rank order, and all others fetch it."""
        for reduction in reductions(self.exchange):
            yield from self._planned(reduction.combine)
            for copy in reduction.copies:
                yield from self._planned(copy)

    def _planned(self, plan: GatherPlan) -> Iterator[Any]:
        """The work of a gather plan."""
        (target, there), *parts = (self._located(ref) for ref in (plan.target, *plan.parts))
        yield from self._gather(parts, target, there)

    def _located(self, ref: BoxRef) -> Part:
        array = ref.array(self.inputs, self.outputs)
        box = ref.view(array if _is_host(array) else strided(array))
        return ref.device(self.exchange), box

    def _gather(self, parts: Sequence[Part], target: Device, there: Box) -> Iterator[Any]:
        """Combines parts in their order; a single one is brought.

        The target may be one of the parts: then the first two are added up before it is read.
        """
        if len(parts) == 1:
            yield from self._bring(parts[0], target, there)
            return
        near: list[Box] = []
        for position, (source, part) in enumerate(parts):
            is_host, late = _is_host(there), position > 1  # when the target holds a sum already
            if source != target or (late and _where(part) == _where(there)):
                room = np.empty(part.shape, part.dtype) if is_host else self.ends[target].like(part)
                yield from self._bring((source, part), target, room)
                part = room
            near.append(part)
        if not _is_host(there):
            yield from self.ends[target].bench.combine(self.exchange.combine, there, near)
            return
        left = near[0]
        for right in near[1:]:
            yield partial(COMBINE[self.exchange.combine], left, right, out=there)
            left = there

    def _bring(self, part: Part, target: Device, there: Box) -> Iterator[Any]:
        """A copy; between devices it is one of rows: others are packed before and behind it."""
        source, box = part
        if source == target:
            on_host = (partial(np.copyto, there, box),) if _is_host(there) else None
            yield from on_host or self.ends[target].bench.copy(there, box)
            return
        self.meter.links[source, target] += box.nbytes
        if not box.size:
            return
        row, end = box, there
        if not _is_host(box) and not box.is_contiguous:
            row = self.ends[source].like(box)
            yield from self.ends[source].bench.copy(row, box)
        if not _is_row(there):
            is_host = _is_host(there)
            end = np.empty(box.shape, box.dtype) if is_host else self.ends[target].like(there)
        yield self._across(source, row, target, end)
        if end is not there:
            yield from self._bring((target, end), target, there)

    def _across(self, source: Device, row: Box, target: Device, end: Box) -> Launch:
        """What copies a row from device to device."""
        if _is_host(end):
            if _is_host(row):
                return partial(np.copyto, end, row)
            return partial(self.ends[source].traffic.fetch, row_of(row), end)
        if _is_host(row):
            return partial(self.ends[target].traffic.bring, row_of(end), row)
        return CopyLaunch(self.ends[target].bench.hardware, row_of(end), row_of(row))


def _is_host(array: Any) -> bool:
    return isinstance(array, np.ndarray)


def _where(box: Box) -> int:
    """The address of the first element."""
    if _is_host(box):
        return int(box.ctypes.data)
    return int(box.array.address + box.offset * box.dtype.itemsize)


def _is_row(box: Box) -> bool:
    contiguous = box.flags.c_contiguous if _is_host(box) else box.is_contiguous
    return bool(contiguous)
