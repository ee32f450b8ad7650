"""Buffers and their offsets in the arenas of their devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from flow_core.base.alignment import ALIGNMENT, aligned
from flow_core.base.errors import SourceLine
from flow_core.compiler.memory.arena import ArenaLayout, Block, plan_arena
from flow_core.ir.graph import TensorType, Value
from flow_core.plan import ArenaPlan, Buffer
from flow_core.sharding.topology import Device

Limit = Callable[[Device], int | None]
"""A function that returns the number of bytes that a device has for a plan; None for no limit."""

IsResident = Callable[[str, Device], bool]
"""A predicate: whether a physical variable already has memory on a device."""

Rows = Sequence[tuple[int, str, str]]
"""Table rows: number of bytes, name of the tensor or buffer, and source line."""


@dataclass(slots=True)
class Buffers:
    """The buffers of a plan under construction, some of which have blocks in an arena."""

    items: list[Buffer] = field(default_factory=list)
    blocks: list[tuple[int, Block]] = field(default_factory=list)  # with memory of their own
    # Maps each view to the buffer in whose memory it is, and to its offset there in bytes.
    views: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Maps a value to the buffer that holds it and the values side by side with it.
    owners: dict[Value, int] = field(default_factory=dict)
    # Maps a value and a type to the buffer for the view of the value with that type.
    seen_as: dict[tuple[Value, TensorType], int] = field(default_factory=dict)

    def add(self, buffer: Buffer) -> int:
        """Add a buffer with its own memory, and return the buffer's position in `items`."""
        self.items.append(buffer)
        index = len(self.items) - 1
        if buffer.kind != "variable" and not buffer.type.dtype.is_object:
            block = Block(buffer.type.nbytes, buffer.first, buffer.last)
            self.blocks.append((index, block))
        return index

    def view(
        self, value: Value, type_: TensorType, device: Device, owner: Value, shift: int
    ) -> int:
        """Return the buffer of a value stored in an owner's memory, at an offset in bytes.

        The result is the owner's buffer if the type and the device are the same.
        """
        key = (value, type_)
        if key in self.seen_as:
            return self.seen_as[key]
        at = self.owners[owner]
        base = self.items[at]
        if base.type == type_ and base.device == device:
            self.seen_as[key] = at
            return at
        home = base.device if base.device != device else None
        kind, first, last = base.kind, base.first, base.last
        self.items.append(Buffer(*value, kind, device, -1, type_, first, last, home))
        self.seen_as[key] = len(self.items) - 1
        self.views[self.seen_as[key]] = (at, shift)
        return self.seen_as[key]


def place(
    buffers: Buffers,
    lines: Mapping[str, SourceLine],
    limit: Limit | None,  # the memory that each device has for the plan
    is_resident: IsResident,  # whether a variable already has memory on a device
    # The number of bytes to a multiple of which the offsets on a device are aligned; itself a
    # multiple of `ALIGNMENT`.
    alignment: Callable[[Device], int] = lambda _: ALIGNMENT,
) -> tuple[tuple[ArenaPlan, ...], tuple[Buffer, ...]]:
    """Plan the arena of each device; return the arenas, and all buffers with their offsets.

    Raises:
        OutOfMemoryError: an arena and the new variables exceed a device's memory.
    """
    by_device: dict[Device, list[tuple[int, Block]]] = {}
    for index, block in buffers.blocks:
        by_device.setdefault(buffers.items[index].device, []).append((index, block))
    for buffer in buffers.items:
        by_device.setdefault(buffer.device, [])
    if not by_device:  # the job does nothing
        by_device[Device("cpu", 0, 0)] = []
    arenas: list[ArenaPlan] = []
    known: dict[tuple[Block, ...], ArenaLayout] = {}
    offsets: dict[int, int] = {}
    types = list(dict.fromkeys(device.type for device in by_device))
    for device in sorted(by_device, key=partial(_position, types)):
        blocks = by_device[device]
        layout = _layout([block for _, block in blocks], known, alignment(device))
        offsets.update(zip([i for i, _ in blocks], layout.offsets, strict=True))
        owners = _owners(buffers, lines, blocks, layout.peak)
        arena = ArenaPlan(device, layout.nbytes, layout.lower_bound, layout.peak, owners)
        if limit is not None:
            _check_memory(arena, limit(device), _new_variables(buffers, lines, device, is_resident))
        arenas.append(arena)
    return tuple(arenas), _placed(buffers, offsets)


def _position(types: Sequence[str], device: Device) -> tuple[int, int, int]:
    """Return the sort key of a device: its type, then its numbers."""
    return types.index(device.type), device.machine, device.index


def _layout(
    blocks: Sequence[Block], known: dict[tuple[Block, ...], ArenaLayout], alignment: int
) -> ArenaLayout:
    """Plan the arena of a device, or reuse the layout of a device with equal blocks.

    Offsets are sums of sizes, so they are aligned if the sizes are multiples of the alignment.
    """
    times = sorted({time for b in blocks for time in (b.first, b.last)})
    rank = {time: i for i, time in enumerate(times)}
    sizes = [aligned(b.nbytes, alignment) for b in blocks]
    pairs = zip(blocks, sizes, strict=True)
    normalized = tuple(Block(size, rank[b.first], rank[b.last]) for b, size in pairs)
    if normalized not in known:
        known[normalized] = plan_arena(normalized)
    layout = known[normalized]
    return replace(layout, peak=times[layout.peak] if times else 0)


def _placed(buffers: Buffers, offsets: Mapping[int, int]) -> tuple[Buffer, ...]:
    placed: list[Buffer] = []
    for index, buffer in enumerate(buffers.items):
        source, shift = buffers.views.get(index, (index, 0))
        named = buffers.items[source] if buffer.kind == "variable" else buffer
        offset = offsets[source] + shift if source in offsets else -1
        placed.append(replace(buffer, offset=offset, op=named.op, output=named.output))
    return tuple(placed)


def _owners(
    buffers: Buffers,
    lines: Mapping[str, SourceLine],
    blocks: Sequence[tuple[int, Block]],
    peak: int,
) -> tuple[tuple[int, str, str], ...]:
    rows = []
    for index, block in blocks:
        if block.first <= peak <= block.last:
            buffer = buffers.items[index]
            rows.append((aligned(block.nbytes), buffer.name, str(lines.get(buffer.op, ""))))
    return tuple(sorted(rows, reverse=True)[:20])


def _new_variables(
    buffers: Buffers, lines: Mapping[str, SourceLine], device: Device, is_resident: IsResident
) -> Rows:
    """Return the variables of a device that do not have memory on the device yet."""
    rows = []
    for index, buffer in enumerate(buffers.items):
        own = buffer.kind == "variable" and index not in buffers.views
        if own and buffer.device == device and not is_resident(buffer.op, device):
            size = aligned(buffer.type.nbytes)
            rows.append((size, f"{buffer.name}, a variable", str(lines.get(buffer.op, ""))))
    return rows


def _check_memory(arena: ArenaPlan, limit: int | None, variables: Rows) -> None:
    needed = arena.nbytes + sum(n for n, _, __ in variables)
    if limit is not None and needed > limit:
        raise arena.too_large("planning", f"{limit:,} bytes", variables)
