"""The communicator (comm) of one process: peer copies between its devices, and local reductions.

A GPU copies the data it needs from another GPU's memory. Kernels read local memory only, so that
machines without peer access work as well. The copies and reductions run on a separate stream of
each device and are captured with the step. Host calls transfer data from and to the CPU through
page-locked memory; these calls split the captured step.
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
    Comm,
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
from flow_core.base.errors import install_command
from flow_cuda.device.hardware import Access, Hardware
from flow_cuda.device.launch import CopyLaunch, HostNumber, Queued
from flow_cuda.device.staging import HostCopies
from flow_cuda.driver.copier import GpuCopier, contiguous_array

LANE = "boxing"
"""The name of the stream, on each device, on which exchanges run."""

SIZES = ("FLOW_DIST_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Environment variables in which launchers pass the number of processes."""

CHUNK = 1 << 20
"""The size of a page-locked staging buffer in bytes."""

Box = Any
"""A `Strided` view of GPU memory, or a view of a host array."""

Part = tuple[Device, Box]
"""A device, and a box in its memory."""


def bootstrap(env: Mapping[str, str] = os.environ) -> Available | Unavailable:
    """Return `Available` if this process is the only one of its program."""
    several = next((f"{name}={env[name]}" for name in SIZES if env.get(name, "1") != "1"), "")
    if several:
        return Unavailable(
            f"the program runs in several processes ({several})",
            f"install NCCL: {install_command('flow-dist[cu12]')} (or flow-dist[cu13])",
        )
    return Available(1, "the devices of this process")


@dataclass(frozen=True, eq=False)
class SideStreamWork(Queued):
    """Work of a step that runs on a stream other than the compute stream.

    Attributes:
        work: the wrapped work.
        counts: called whenever the work is queued, to count bytes; None if nothing is counted.
    """

    work: Queued
    counts: Callable[[], None] | None = None
    lane: str = LANE

    @property
    def hardware(self) -> Hardware:  # type: ignore[override]
        """The device."""
        return self.work.hardware

    @property
    def title(self) -> str:
        """The name of the wrapped work."""
        return self.work.title

    @property
    def numbers(self) -> tuple[HostNumber, ...]:  # type: ignore[override]
        """The host numbers that the work reads."""
        return self.work.numbers

    @property
    def peers(self) -> tuple[Hardware, ...]:  # type: ignore[override]
        """The devices from which the work copies."""
        return self.work.peers

    def queue(self, stream: Any) -> None:
        """Queue the work on a stream."""
        if self.counts is not None:
            self.counts()
        self.work.queue(stream)

    def touched(self) -> Access:
        """What the wrapped work reads and writes."""
        return self.work.touched()


class PeerComm(Comm):
    """The comm of the devices of this process.

    Args:
        devices: all devices.

    Attributes:
        devices, local: names of all devices.
    """

    name = "peers"

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = self.local = tuple(devices)
        self._ends: dict[Device, _Endpoint] = {}
        self._meters: list[Meter] = []
        self._steps = Steps()

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Sequence[Launch]:
        """Return the launches of an exchange between fixed arrays.

        Raises:
            PlanError: the arrays do not match the exchange.
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
        """Return the bytes transferred so far for each pair (source device, destination device)."""
        return sent_by(self._meters)

    def before_step(self) -> None:
        """Mark the beginning of a step."""
        self._steps.running = True

    def after_step(self) -> None:
        """Mark the end of a step."""
        self._steps.done += 1
        self._steps.running = False


class _Endpoint:
    """A GPU's copies from and to the host, and its scratch memory, which exchanges reuse.

    Args:
        copier: the device's copier.
    """

    def __init__(self, copier: GpuCopier) -> None:
        self.copier = copier
        self.scratch = Scratch(copier.scratch)
        self._host_copies: HostCopies | None = None

    @property
    def host_copies(self) -> HostCopies:
        """Staged copies from and to the host."""
        self._host_copies = self._host_copies or HostCopies(self.copier.hardware, CHUNK)
        return self._host_copies

    def scratch_like(self, box: Box) -> Strided:
        """Return contiguous scratch memory for the elements of a box."""
        return self.scratch.row(int(box.size), box.dtype).reshape(tuple(box.shape))


@dataclass(slots=True)
class _Binding:
    """The lowering of one exchange to launches, which count the bytes sent between devices."""

    exchange: Exchange
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    ends: dict[Device, _Endpoint]
    meter: Meter

    def works(self) -> Iterator[Any]:
        """Yield the launches, in order."""
        exchange = self.exchange
        places = (*exchange.senders, *exchange.receivers)
        arrays = zip(places, (*self.inputs, *self.outputs), strict=True)
        copiers = {d: array.copier for d, array in arrays if not _is_host(array)}
        for device, copier in copiers.items():
            self.ends.setdefault(device, _Endpoint(copier)).scratch.reuse()
            for other in copiers.values():
                copier.hardware.reach(other.hardware.index)
        yield from self._all_reduce() if exchange.collective == "all_reduce" else self._moves()

    def _moves(self) -> Iterator[Any]:
        exchange = self.exchange
        for index, operation in exchange.fills:
            out, value = self.outputs[index], neutral(operation, exchange.outputs[index].dtype)
            if _is_host(out):
                yield partial(out.fill, np.array(value, out.dtype))
            else:
                yield from self.ends[exchange.receivers[index]].copier.fill(strided(out), value)
        for plan in block_gathers(exchange):
            yield from self._gather_plan(plan)

    def _all_reduce(self) -> Iterator[Any]:
        """Yield a reduce-scatter, which reduces each chunk in rank order, and an all-gather."""
        for reduction in reductions(self.exchange):
            yield from self._gather_plan(reduction.combine)
            for copy in reduction.copies:
                yield from self._gather_plan(copy)

    def _gather_plan(self, plan: GatherPlan) -> Iterator[Any]:
        """Yield the launches of a gather plan."""
        (target, out), *parts = (self._locate(ref) for ref in (plan.target, *plan.parts))
        yield from self._reduce_parts(parts, target, out)

    def _locate(self, ref: BoxRef) -> Part:
        array = ref.array(self.inputs, self.outputs)
        box = ref.view(array if _is_host(array) else strided(array))
        return ref.device(self.exchange), box

    def _reduce_parts(self, parts: Sequence[Part], target: Device, out: Box) -> Iterator[Any]:
        """Yield launches that reduce parts in order into the target, or copy a single part.

        The target may be one of the parts: the first two parts are added before it is overwritten.
        """
        if len(parts) == 1:
            yield from self._copy_box(parts[0], target, out)
            return
        near: list[Box] = []
        for position, (source, part) in enumerate(parts):
            late = position > 1  # the target already holds a sum
            if source != target or (late and _address(part) == _address(out)):
                scratch = self._scratch(target, out, part)
                yield from self._copy_box((source, part), target, scratch)
                part = scratch
            near.append(part)
        if not _is_host(out):
            yield from self.ends[target].copier.combine(self.exchange.combine, out, near)
            return
        left = near[0]
        for right in near[1:]:
            yield partial(COMBINE[self.exchange.combine], left, right, out=out)
            left = out

    def _copy_box(self, part: Part, target: Device, out: Box) -> Iterator[Any]:
        """Yield launches that copy a box; between devices, they pack, copy and unpack it."""
        source, box = part
        if source == target:
            on_host = (partial(np.copyto, out, box),) if _is_host(out) else None
            yield from on_host or self.ends[target].copier.copy(out, box)
            return
        self.meter.links[source, target] += box.nbytes
        if not box.size:
            return
        row, end = box, out
        if not _is_host(box) and not box.is_contiguous:
            row = self.ends[source].scratch_like(box)
            yield from self.ends[source].copier.copy(row, box)
        if not _is_contiguous(out):
            end = self._scratch(target, out, box)
        yield self._copy_contiguous(source, row, target, end)
        if end is not out:
            yield from self._copy_box((target, end), target, out)

    def _scratch(self, target: Device, out: Box, box: Box) -> Box:
        """Return scratch memory for a box; host memory if ``out`` is on the host."""
        if _is_host(out):
            return np.empty(box.shape, box.dtype)
        return self.ends[target].scratch_like(box)

    def _copy_contiguous(self, source: Device, row: Box, target: Device, end: Box) -> Launch:
        """Build the copy of contiguous memory from device to device."""
        if _is_host(end):
            if _is_host(row):
                return partial(np.copyto, end, row)
            return partial(self.ends[source].host_copies.download, contiguous_array(row), end)
        if _is_host(row):
            return partial(self.ends[target].host_copies.upload, contiguous_array(end), row)
        return CopyLaunch(
            self.ends[target].copier.hardware, contiguous_array(end), contiguous_array(row)
        )


def _is_host(array: Any) -> bool:
    return isinstance(array, np.ndarray)


def _address(box: Box) -> int:
    """Return the address of the first element of a box."""
    if _is_host(box):
        return int(box.ctypes.data)
    return int(box.array.address + box.offset * box.dtype.itemsize)


def _is_contiguous(box: Box) -> bool:
    contiguous = box.flags.c_contiguous if _is_host(box) else box.is_contiguous
    return bool(contiguous)
