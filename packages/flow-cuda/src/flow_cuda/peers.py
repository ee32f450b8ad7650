"""The comm between the GPUs of one process: copies between devices, sums where they are needed.

A device fetches what it needs from the memory of another one; only copies go from device to device,
so that it works on machines whose GPUs cannot read one another's memory, too.  All of it is work of
the devices' own streams beside those that compute, and becomes part of a captured step.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.device import Launch, Strided, strided
from flow_core.exchange import Block, Exchange, check_arrays, neutral
from flow_core.plugins.specs import Available, Unavailable
from flow_cuda.hardware import Access, Hardware
from flow_cuda.launch import CopyLaunch, HostNumber, Queued
from flow_cuda.workbench import GpuWorkbench, row_of

LANE = "boxing"
"""The stream of each device on which exchanges run."""

SLAB, ALIGN = 1 << 22, 256
"""Bytes of a piece of memory for parts on their way, and of what their addresses are multiples."""

SIZES = ("FLOW_DIST_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which launchers tell a process how many they started."""

Part = tuple[str, Strided]
"""A box, and the device in whose memory it lies."""


def bootstrap(env: Mapping[str, str] = os.environ) -> Available | Unavailable:
    """Whether this process is the only one of its program."""
    several = next((f"{name}={env[name]}" for name in SIZES if env.get(name, "1") != "1"), "")
    if several:
        return Unavailable(
            f"the program has several processes ({several})",
            "install NCCL: uv add 'flow-dist[cu12]' (or flow-dist[cu13])",
        )
    return Available(1, "the GPUs of this process")


@dataclass(slots=True)
class _Steps:
    """The steps of a plan: how many are over, and whether one is running."""

    done: int = 0
    running: bool = False


@dataclass(slots=True)
class _Meter:
    """What one exchange moves per launch, and how often that was.

    Attributes:
        steps: of the plan.
        links: bytes per launch, by (from, to).
        launches: how often it was queued by a call.
        every_step: whether it is part of a step: then a captured graph runs it, with no call.
    """

    steps: _Steps
    links: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: int = 0
    every_step: bool = False

    def count(self) -> None:
        """Counts a call."""
        self.launches += 1
        self.every_step |= self.steps.running

    @property
    def times(self) -> int:
        """How often it ran."""
        return self.steps.done if self.every_step else self.launches


@dataclass(frozen=True, eq=False)
class Aside(Queued):
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
    """Joins the GPUs of this process.

    Args:
        devices: text forms of all devices.

    Attributes:
        devices, local: all of them.
    """

    name = "peers"

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = self.local = tuple(devices)
        self._rooms: dict[str, _Room] = {}
        self._meters: list[_Meter] = []
        self._steps = _Steps()

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Sequence[Launch]:
        """The launches of an exchange between fixed arrays.

        Raises:
            PlanError: the arrays are not what the exchange says.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        binding = _Binding(exchange, inputs, outputs, self._rooms, _Meter(self._steps))
        works = list(binding.works())
        if not binding.meter.links:
            return works
        self._meters.append(binding.meter)
        return [Aside(works[0], binding.meter.count), *map(Aside, works[1:])]

    def sent(self) -> Mapping[tuple[str, str], int]:
        """Bytes that went from device to device so far, by (from, to)."""
        total: Counter[tuple[str, str]] = Counter()
        for meter in self._meters:
            for link, nbytes in meter.links.items():
                total[link] += nbytes * meter.times
        return {link: nbytes for link, nbytes in total.items() if nbytes}

    def before_step(self) -> None:
        """A step begins."""
        self._steps.running = True

    def after_step(self) -> None:
        """A step is over."""
        self._steps.done += 1
        self._steps.running = False


class _Room:
    """Memory of a device for parts on their way, the same for all exchanges: they take turns.

    Args:
        bench: the device's.
    """

    def __init__(self, bench: GpuWorkbench) -> None:
        self._bench = bench
        self._slabs: list[Any] = []
        self._at = self._used = 0

    def reuse(self) -> None:
        """What follows is for another exchange."""
        self._at = self._used = 0

    def like(self, box: Strided) -> Strided:
        """Room for the elements of a box, in a row."""
        while self._at < len(self._slabs):
            if self._used + box.nbytes <= self._slabs[self._at].nbytes:
                break
            self._at, self._used = self._at + 1, 0
        else:
            self._slabs.append(self._bench.scratch(max(SLAB, box.nbytes)))
        found = self._slabs[self._at].view(self._used, box.shape, box.dtype)
        self._used += -(-box.nbytes // ALIGN) * ALIGN
        return strided(found)


@dataclass(slots=True)
class _Binding:
    """One exchange while it is bound: every part that crosses devices tells the meter."""

    exchange: Exchange
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rooms: dict[str, _Room]
    meter: _Meter
    benches: dict[str, GpuWorkbench] = field(default_factory=dict)

    def works(self) -> Iterator[Any]:
        """Its launches, in order."""
        exchange = self.exchange
        places = (*exchange.senders, *exchange.receivers)
        ends = zip(places, (*self.inputs, *self.outputs), strict=True)
        self.benches = {device: array.workbench for device, array in ends}
        for device, bench in self.benches.items():
            self.rooms.setdefault(device, _Room(bench)).reuse()
            for other in self.benches.values():
                bench.hardware.reach(other.hardware.index)
        yield from self._all_reduce() if exchange.collective == "all_reduce" else self._moves()

    def _moves(self) -> Iterator[Any]:
        exchange = self.exchange
        for index, operation in exchange.fills:
            value = neutral(operation, exchange.outputs[index].dtype)
            box = strided(self.outputs[index])
            yield from self.benches[exchange.receivers[index]].fill(box, value)
        for blocks in _coinciding(exchange.blocks):
            target = exchange.receivers[blocks[0].target]
            there = _box(self.outputs[blocks[0].target], blocks[0].at, blocks[0].size)
            parts = [
                (exchange.senders[b.source], _box(self.inputs[b.source], b.start, b.size))
                for b in blocks
            ]
            if not blocks[0].first:
                parts.insert(0, (target, there))
            yield from self._gather(parts, target, there)

    def _all_reduce(self) -> Iterator[Any]:
        """Each device combines its chunk, in rank order, and all others fetch it."""
        group = self.exchange.group
        for owner, segments in enumerate(self.exchange.chunks()):
            for member, low, high in segments:
                ranks = [member * len(group) + r for r in range(len(group))]
                rows = [_flat(self.inputs[i], low, high) for i in ranks]
                parts = list(zip(group, rows, strict=True))
                done = _flat(self.outputs[ranks[owner]], low, high)
                yield from self._gather(parts, group[owner], done)
                for rank, device in enumerate(group):
                    if rank != owner:
                        there = _flat(self.outputs[ranks[rank]], low, high)
                        yield from self._bring((group[owner], done), device, there)

    def _gather(self, parts: Sequence[Part], target: str, there: Strided) -> Iterator[Any]:
        """Combines parts in their order; a single one is brought.

        The target may be one of the parts: then the first two are added up before it is read.
        """
        if len(parts) == 1:
            yield from self._bring(parts[0], target, there)
            return
        near: list[Strided] = []
        for i, (source, part) in enumerate(parts):
            if source != target or (i > 1 and _start(part) == _start(there)):
                room = self.rooms[target].like(part)
                yield from self._bring((source, part), target, room)
                part = room
            near.append(part)
        yield from self.benches[target].combine(self.exchange.combine, there, near)

    def _bring(self, part: Part, target: str, there: Strided) -> Iterator[Any]:
        """A copy from device to device is one of rows: others are packed before and behind it."""
        source, box = part
        if source == target:
            yield from self.benches[target].copy(there, box)
            return
        self.meter.links[source, target] += box.nbytes
        row, end = box, there
        if not box.is_contiguous:
            row = self.rooms[source].like(box)
            yield from self.benches[source].copy(row, box)
        if not there.is_contiguous:
            end = self.rooms[target].like(there)
        if box.size:
            yield CopyLaunch(self.benches[target].hardware, row_of(end), row_of(row))
        if end is not there:
            yield from self.benches[target].copy(there, end)


def _box(array: Any, start: Iterable[int], size: Iterable[int]) -> Strided:
    window = tuple([slice(a, a + n) for a, n in zip(start, size, strict=True)])
    return strided(array)[window]


def _start(box: Strided) -> int:
    """The address of a box."""
    return int(box.array.address) + box.offset * int(box.dtype.itemsize)


def _flat(array: Any, low: int, high: int) -> Strided:
    return strided(array).reshape(-1)[low:high]


def _coinciding(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks that fill the same box, in their order."""
    found: dict[Any, list[Block]] = {}
    for block in blocks:
        found.setdefault((block.target, block.at, block.size), []).append(block)
    yield from found.values()
