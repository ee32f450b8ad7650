"""The comm within one process: copies and combines between devices' arrays, byte by byte counted.

All devices share the process's memory, as CPU devices and emulated ones do.  A plan may give
several of them one array for what they have in common: it is filled once, and what would have
crossed devices is counted as if each had its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flow_core.builtin.calls import call
from flow_core.device import Launch
from flow_core.exchange import COMBINE, Block, Exchange, check_arrays, neutral
from flow_core.ops.data_movement.boxing import window
from flow_core.plugins.specs import Available


def bootstrap() -> Available:
    """One process needs nobody to join it."""
    return Available(1, "this process")


@dataclass(slots=True)
class Meter:
    """What one exchange moves per launch, and how often it was launched.

    Attributes:
        links: bytes per (from, to), added up from the arrays that are copied.
        launches: how often it ran to its end.
    """

    links: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: int = 0

    def count(self) -> None:
        """Counts a launch: the last part of each."""
        self.launches += 1


class InProcessComm:
    """Joins devices of one process whose arrays are numpy's.

    Args:
        devices: text forms of all devices.

    Attributes:
        devices: all devices that it joins.
        local: those of this process: all.
    """

    name = "in_process"

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = self.local = tuple(devices)
        self._meters: list[Meter] = []

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """The launches of an exchange between fixed arrays.

        Raises:
            PlanError: the arrays are not what the exchange says.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        binding = _Binding(exchange, inputs, outputs, Meter())
        launches = tuple(binding.launches())
        if not binding.meter.links:
            return launches
        self._meters.append(binding.meter)
        return (*launches, binding.meter.count)

    def sent(self) -> Mapping[tuple[str, str], int]:
        """Bytes that went from device to device so far, by (from, to)."""
        total: Counter[tuple[str, str]] = Counter()
        for meter in self._meters:
            for link, nbytes in meter.links.items():
                total[link] += nbytes * meter.launches
        return {link: nbytes for link, nbytes in total.items() if nbytes}


@dataclass(slots=True)
class _Binding:
    """One exchange while it is bound: every copy tells the meter of its bytes."""

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
        for blocks in _coinciding(self.exchange.blocks):
            target = self.exchange.receivers[blocks[0].target]
            there = _box(self.outputs[blocks[0].target], blocks[0].at, blocks[0].size)
            parts = [
                (self.exchange.senders[b.source], _box(self.inputs[b.source], b.start, b.size))
                for b in blocks
            ]
            if not blocks[0].first:
                parts.insert(0, (target, there))
            launches = list(self._gather(combine, parts, target, there))
            if _where(there) not in done:  # else devices share it, and it is made already
                yield from launches
            done.add(_where(there))

    def _all_reduce(self, combine: Any) -> Iterator[Launch]:
        """Each device combines its chunk, in rank order, and gives it to all others."""
        group = self.exchange.group
        for owner, segments in enumerate(self.exchange.chunks()):
            for member, low, high in segments:
                ranks = [member * len(group) + r for r in range(len(group))]
                is_summed = member in self.exchange.summed
                parts = [_flat(self.inputs[i], low, high) for i in ranks]
                done = _flat(self.outputs[ranks[owner]], low, high)
                given = list(zip(group, parts, strict=True))
                if is_summed:
                    yield from self._take_sum(given, group[owner], done)
                else:
                    yield from self._gather(combine, given, group[owner], done)
                for rank, device in enumerate(group):
                    if rank != owner:
                        there = _flat(self.outputs[ranks[rank]], low, high)
                        yield from self._copy(group[owner], done, device, there)

    def _take_sum(
        self, parts: Sequence[tuple[str, Any]], target: str, there: Any
    ) -> Iterator[Launch]:
        """What devices have summed up in one place, as if the target had got all parts."""
        for source, part in parts:
            self._note(source, target, part)
        yield from self._copy(target, parts[0][1], target, there)

    def _gather(
        self, combine: Any, parts: Sequence[tuple[str, Any]], target: str, there: Any
    ) -> Iterator[Launch]:
        """Combines parts in their order; the first two at once, a single one is copied.

        The target may be one of the parts.
        """
        if len(parts) == 1:
            yield from self._copy(*parts[0], target, there)
            return
        for source, part in parts:
            self._note(source, target, part)
        late = any(_where(part) == _where(there) for _, part in parts[2:])
        sums = np.empty_like(there) if late else there  # else it is written before it is read
        yield call(combine, parts[0][1], parts[1][1], out=sums)
        for _, part in parts[2:-1]:
            yield call(combine, sums, part, out=sums)
        if len(parts) > 2:
            yield call(combine, sums, parts[-1][1], out=there)

    def _copy(self, source: str, part: Any, target: str, there: Any) -> Iterator[Launch]:
        """A copy, unless both devices have it in the same place."""
        self._note(source, target, part)
        if _where(part) != _where(there):
            yield partial(np.copyto, there, part)

    def _note(self, source: str, target: str, part: Any) -> None:
        if source != target:
            self.meter.links[source, target] += part.nbytes


def _box(array: Any, start: tuple[int, ...], size: tuple[int, ...]) -> Any:
    return array[*window(start, size), ...]  # the ellipsis makes a view of a 0-d array, too


def _flat(array: Any, low: int, high: int) -> Any:
    return array.reshape(-1)[low:high]


def _where(array: Any) -> object:
    """What tells apart arrays that are not the same memory."""
    return array.ctypes.data, array.shape, array.strides


def _coinciding(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks that fill the same box, in their order."""
    found: dict[Any, list[Block]] = {}
    for block in blocks:
        found.setdefault((block.target, block.at, block.size), []).append(block)
    yield from found.values()
