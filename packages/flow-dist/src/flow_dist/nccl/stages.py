"""Lower an exchange to NCCL calls: to NCCL's collectives if they fit, else to sends and receives.

A stage is one group of calls, with the launches before and after the group, which pack and unpack
boxes that are not contiguous with kernels of the devices.  The calls depend on the exchange alone,
so all processes agree on them; packing depends on the local arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from flow_core.authoring.backends import (
    Block,
    DeviceCopier,
    DevicePair,
    Exchange,
    Launch,
    Strided,
    neutral,
)
from flow_core.authoring.specs import Device, Devices, numbered
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape
from flow_dist.nccl.types import DTYPES, op_of
from flow_dist.phases import Gather, phases_of, routes

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Call:
    """An NCCL call of a local device."""

    primitive: str  # name of the function in `flow_dist.nccl.library.PRIMITIVES`
    device: Device  # whose communicator handle and stream the call uses
    arguments: tuple[int, ...]  # arguments of the primitive
    reads: tuple[Strided, ...] = ()  # the arrays that the call accesses
    writes: tuple[Strided, ...] = ()
    sends: tuple[tuple[Device, int], ...] = ()  # bytes that the device sends to each other device


@dataclass(slots=True)
class Stage:
    """One group of calls."""

    before: list[Launch] = field(default_factory=list)  # launches that pack boxes
    calls: list[Call] = field(default_factory=list)  # of the local devices
    after: list[Launch] = field(default_factory=list)  # launches that unpack and combine boxes


@dataclass(frozen=True, slots=True)
class Site:
    """The devices of an exchange, and the arrays of this process."""

    devices: tuple[Device, ...]  # devices of the exchange, in rank order
    copiers: Mapping[Device, DeviceCopier]  # of the local devices
    inputs: Mapping[int, Strided]  # the arrays of this process, by position
    outputs: Mapping[int, Strided]
    # Allocates a contiguous row of elements on a local device for the exchange.
    scratch: Callable[[Device, int, Any], Strided]


def stages_of(exchange: Exchange, site: Site, ordered: bool) -> list[Stage]:
    """Return the stages of this process's part of an exchange.

    Args:
        ordered: whether floating-point sums are added in the exchange's order, not in NCCL's.
    """
    first = Stage(before=list(_fills(exchange, site)))
    keeps_order = ordered and _is_rounded(exchange)
    stages = None if keeps_order else _native(exchange, site)
    return [first, *(stages if stages is not None else _pairwise(exchange, site))]


def _is_rounded(exchange: Exchange) -> bool:
    dtype = exchange.outputs[0].dtype
    return exchange.collective in REDUCTIONS and exchange.combine == "sum" and dtype.is_floating


def _fills(exchange: Exchange, site: Site) -> Iterator[Launch]:
    for index, operation in exchange.fills:
        box = site.outputs.get(index)
        if box is not None:
            value = neutral(operation, exchange.outputs[index].dtype)
            yield from site.copiers[exchange.receivers[index]].fill(box, value)


# ------------------------------------------------------------------------------- collectives


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of an exchange: at most one input and one output per device."""

    exchange: Exchange  # the whole exchange
    site: Site
    inputs: Mapping[Device, int]  # positions of inputs and outputs in the member, keyed by device
    outputs: Mapping[Device, int]
    first: tuple[int, int]  # positions of the member's first input and output in the exchange
    blocks: Mapping[DevicePair, Block]  # known blocks of the member, keyed by (sender, receiver)

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.site.devices

    @property
    def dtype(self) -> int:
        return DTYPES[self.exchange.outputs[0].dtype.name]

    @property
    def itemsize(self) -> int:
        return self.exchange.outputs[0].dtype.itemsize

    @property
    def op(self) -> int:
        return op_of(self.exchange.combine, self.exchange.outputs[0].dtype)

    def local(self) -> list[Device]:
        return [device for device in self.devices if device in self.site.copiers]

    def others(self, device: Device) -> list[Device]:
        return [other for other in self.devices if other != device]

    def input(self, device: Device) -> Strided:
        return self.site.inputs[self.first[0] + self.inputs[device]]

    def output(self, device: Device) -> Strided:
        return self.site.outputs[self.first[1] + self.outputs[device]]

    def source(self, sender: Device, receiver: Device) -> Strided:
        """Return the box that a local device sends to another device."""
        block = self.blocks[sender, receiver]
        return _window(self.input(sender), block.start, block.size)

    def target(self, sender: Device, receiver: Device) -> Strided:
        """Return the box of a local device into which it receives or combines blocks."""
        block = self.blocks[sender, receiver]
        return _window(self.output(receiver), block.at, block.size)

    def pack(self, stage: Stage, device: Device, others: Sequence[Device]) -> Strided:
        """Return a contiguous row with the boxes that a local device sends to some devices."""
        return _pack(self.site, device, stage, [self.source(device, other) for other in others])

    def unpack(self, stage: Stage, device: Device, others: Sequence[Device]) -> Strided:
        """Return a contiguous row for the boxes that a local device receives from some devices."""
        return _unpack(self.site, device, stage, [self.target(other, device) for other in others])

    def has_all(self, senders: Sequence[Device], receivers: Sequence[Device]) -> bool:
        """Return whether there is exactly one block for each pair, and no other block.

        If only the blocks of local devices are known, these are the pairs with one of them.
        """
        if not (self.inputs.keys() >= set(senders) and self.outputs.keys() >= set(receivers)):
            return False
        here = set(senders) | set(receivers) if self.exchange.local is None else set(self.local())
        pairs = {(s, t) for s in here.intersection(senders) for t in receivers}
        pairs |= {(s, t) for t in here.intersection(receivers) for s in senders}
        return pairs == set(self.blocks)

    def sizes(self) -> set[int]:
        """Return the set of the blocks' numbers of elements."""
        return {prod(block.size) for block in self.blocks.values()}


def _window(box: Strided, start: Shape, size: Shape) -> Strided:
    return box[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]


def _members(exchange: Exchange, site: Site) -> Iterator[_Member | None]:
    """Yield the members of an exchange; None for a member that no collective can transfer."""
    count = len(exchange.member_names)
    sizes = len(exchange.senders) // count, len(exchange.receivers) // count
    given, made = (
        numbered(Devices(side[:size]))
        for side, size in zip((exchange.senders, exchange.receivers), sizes, strict=True)
    )
    moved: list[list[Block]] = [[] for _ in range(count)]
    for block in exchange.blocks:
        moved[block.target // sizes[1]].append(block)
    for m, blocks in enumerate(moved):
        ends = [(exchange.senders[b.source], exchange.receivers[b.target]) for b in blocks]
        by_ends = dict(zip(ends, blocks, strict=True))
        is_whole = (len(given), len(made), len(by_ends)) == (*sizes, len(blocks))
        is_closed = all(b.source // sizes[0] == m for b in blocks)
        first = m * sizes[0], m * sizes[1]
        member = _Member(exchange, site, given, made, first, by_ends)
        yield member if is_whole and is_closed else None


def _native(exchange: Exchange, site: Site) -> list[Stage] | None:
    """Return a list with one stage of NCCL's collectives; None if no collective fits.

    All processes decide alike: they do not know whether the blocks of others fit if the exchange
    is not regular, and use none.
    """
    add_calls = _COLLECTIVES.get(exchange.collective) if exchange.is_regular else None
    combines = exchange.collective in REDUCTIONS
    if add_calls is None or not (combines or all(block.first for block in exchange.blocks)):
        return None
    stage = Stage()
    for member in _members(exchange, site):
        if member is None or not add_calls(member, stage):
            return None
    return [stage]


def _all_reduce(member: _Member, stage: Stage) -> bool:
    count = prod(member.exchange.inputs[member.first[0]].shape)
    for device in member.local() if count else ():
        sendbuf, recvbuf = member.input(device), member.output(device)
        stage.calls.append(_call(member, "all_reduce", device, sendbuf, recvbuf, count, member.op))
    return True


def _all_gather(member: _Member, stage: Stage) -> bool:
    devices = member.devices
    if not member.has_all(devices, devices) or len(member.sizes()) != 1:
        return False
    parts = {(s, _region(member, s, t)) for s, t in member.blocks}
    if len(parts) != len(devices):
        return False  # targets receive different parts
    (count,) = member.sizes()
    for device in member.local():
        sendbuf = member.pack(stage, device, [device])
        recvbuf = _unpack(
            member.site, device, stage, [member.target(other, device) for other in devices]
        )
        sends = [(other, count * member.itemsize) for other in member.others(device)]
        call = _call(member, "all_gather", device, sendbuf, recvbuf, count, sends=sends)
        stage.calls.append(call)
    return True


def _region(member: _Member, sender: Device, receiver: Device) -> tuple[Shape, Shape]:
    block = member.blocks[sender, receiver]
    return block.start, block.size


def _all_to_all(member: _Member, stage: Stage) -> bool:
    devices = member.devices
    if not member.has_all(devices, devices) or len(member.sizes()) != 1:
        return False
    (count,) = member.sizes()
    for device in member.local():
        sendbuf = _pack(
            member.site, device, stage, [member.source(device, other) for other in devices]
        )
        recvbuf = _unpack(
            member.site, device, stage, [member.target(other, device) for other in devices]
        )
        sends = [(other, count * member.itemsize) for other in member.others(device)]
        stage.calls.append(
            _call(member, "all_to_all", device, sendbuf, recvbuf, count, sends=sends)
        )
    return True


def _reduce_scatter(member: _Member, stage: Stage) -> bool:
    """Add one call if all parts have the same size, otherwise one reduction per nonempty part."""
    devices = member.devices
    one = member.local()[0]
    targets = [device for device in devices if (one, device) in member.blocks]
    if not member.has_all(devices, targets) or not _replaces_targets(member):
        return False
    if targets != list(devices) or len(member.sizes()) != 1:
        for root in targets:
            _reduce_to(member, stage, root)
        return True
    (count,) = member.sizes()
    for device in member.local():
        sendbuf = _pack(
            member.site, device, stage, [member.source(device, other) for other in devices]
        )
        recvbuf = member.unpack(stage, device, [device])
        sends = [(other, count * member.itemsize) for other in member.others(device)]
        call = _call(
            member, "reduce_scatter", device, sendbuf, recvbuf, count, member.op, sends=sends
        )
        stage.calls.append(call)
    return True


def _replaces_targets(member: _Member) -> bool:
    """Return whether all blocks of each target fill the same box and replace its contents.

    If only the blocks of local devices are known, this holds for other targets if for one.
    """
    by_receiver: dict[Device, list[Block]] = {}
    for (_, receiver), block in member.blocks.items():
        if member.exchange.local is None or receiver in member.site.copiers:
            by_receiver.setdefault(receiver, []).append(block)
    return all(
        blocks[0].first
        and not any(b.first for b in blocks[1:])
        and len({(b.at, b.size) for b in blocks}) == 1
        for blocks in by_receiver.values()
    )


def _reduce(member: _Member, stage: Stage) -> bool:
    roots = list(member.outputs)
    fits = len(roots) == 1 and roots[0] in member.inputs
    if not fits or not member.has_all(member.devices, roots) or not _replaces_targets(member):
        return False
    _reduce_to(member, stage, roots[0])
    return True


def _reduce_to(member: _Member, stage: Stage, root: Device) -> None:
    """Add a reduction over all devices to one device."""
    for device in member.local():
        sendbuf = member.pack(stage, device, [root])
        recvbuf = sendbuf
        if device == root:
            recvbuf = member.unpack(stage, device, [root])
        sends = () if device == root else ((root, sendbuf.nbytes),)
        place = (member.op, member.devices.index(root))
        call = _call(member, "reduce", device, sendbuf, recvbuf, sendbuf.size, *place, sends=sends)
        stage.calls.append(call if device == root else replace(call, writes=()))


def _broadcast(member: _Member, stage: Stage) -> bool:
    if len(member.inputs) != 1:
        return False
    (root,) = member.inputs
    targets = [device for device in member.devices if device in member.outputs]
    same = len({_region(member, root, receiver) for _, receiver in member.blocks}) == 1
    reached = {*targets, root} == set(member.devices)
    if not (same and reached and member.has_all([root], targets)):
        return False
    for device in member.local():
        is_root, takes = device == root, device in member.outputs
        sendbuf = member.pack(stage, root, targets[:1]) if is_root else None
        recvbuf = member.unpack(stage, device, [root]) if takes else sendbuf
        sendbuf = recvbuf if sendbuf is None else sendbuf
        size = 0 if sendbuf is None else sendbuf.size
        sends = [(t, size * member.itemsize) for t in targets if t != root] if is_root else ()
        place = member.devices.index(root)
        call = _call(member, "broadcast", device, sendbuf, recvbuf, size, place, sends=sends)
        reads, writes = call.reads if is_root else (), call.writes if takes else ()
        stage.calls.append(replace(call, reads=reads, writes=writes))
    return True


_COLLECTIVES: Mapping[str, Callable[[_Member, Stage], bool]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
"""Functions for NCCL's collectives; each adds calls to a stage, or returns False if unsuitable."""


def _call(
    member: _Member,
    primitive: str,
    device: Device,
    sendbuf: Strided | None,
    recvbuf: Strided | None,
    count: int,
    *rest: int,
    sends: Sequence[tuple[Device, int]] = (),
) -> Call:
    if sendbuf is None or recvbuf is None:
        raise ValueError(f"{primitive} on {device}, which has no arrays here")
    arguments = (_address(sendbuf), _address(recvbuf), count, member.dtype, *rest)
    return Call(primitive, device, arguments, (sendbuf,), (recvbuf,), tuple(sends))


def _address(box: Strided) -> int:
    return int(box.array.address) + box.offset * int(box.dtype.itemsize)


# ----------------------------------------------------------------------------------- packing


def _as_row(boxes: Sequence[Strided]) -> Strided | None:
    """Return boxes as one row if they are contiguous and adjacent, else None."""
    follow = all(a.array is b.array and a.offset + a.size == b.offset for a, b in pairwise(boxes))
    if not (follow and all(box.is_contiguous for box in boxes)):
        return None
    size = sum(box.size for box in boxes)
    return Strided(boxes[0].array, boxes[0].offset, (size,), (1,))


def _pack(site: Site, device: Device, stage: Stage, boxes: Sequence[Strided]) -> Strided:
    """Return boxes as a contiguous row; if necessary, the stage first copies them to scratch."""
    row = _as_row(boxes)
    if row is None:
        row, parts = _scratch(site, device, boxes)
        for part, box in zip(parts, boxes, strict=True):
            stage.before.extend(site.copiers[device].copy(part, box))
    return row


def _unpack(site: Site, device: Device, stage: Stage, boxes: Sequence[Strided]) -> Strided:
    """Return a contiguous row to receive into; if necessary, the stage then copies it to boxes."""
    row = _as_row(boxes)
    if row is None:
        row, parts = _scratch(site, device, boxes)
        for part, box in zip(parts, boxes, strict=True):
            stage.after.extend(site.copiers[device].copy(box, part))
    return row


def _scratch(site: Site, device: Device, boxes: Sequence[Strided]) -> tuple[Strided, list[Strided]]:
    """Allocate a row, and return the row and its parts in the shapes of the boxes."""
    row = site.scratch(device, sum(box.size for box in boxes), boxes[0].dtype)
    ends = list(accumulate(box.size for box in boxes))
    parts = [
        row[end - box.size : end].reshape(box.shape) for end, box in zip(ends, boxes, strict=True)
    ]
    return row, parts


# -------------------------------------------------------------------------- sends, receives


def _pairwise(exchange: Exchange, site: Site) -> list[Stage]:
    """Return the phases of any exchange as sends and receives; parts are combined in its order."""
    ends = (exchange.inputs, site.inputs), (exchange.outputs, site.outputs)
    arrays = ([found.get(i) for i in range(len(types))] for types, found in ends)
    phases = phases_of(replace(exchange, fills=()), *arrays)
    return [_phase(gathers, exchange.combine, site) for gathers in phases.phases]


def _phase(gathers: Sequence[Gather], combine: str, site: Site) -> Stage:
    stage, ranks = Stage(), {device: rank for rank, device in enumerate(site.devices)}
    arrived: dict[tuple[int, object], Strided] = {}
    for (source, target), boxes in routes(gathers, ranks.__getitem__).items():
        sender, receiver = site.devices[source], site.devices[target]
        for box in boxes:
            dtype = DTYPES[as_dtype(box.dtype).name]
            count = prod(box.shape)
            if sender in site.copiers:
                row = _pack(site, sender, stage, [box.view])
                sent = ((receiver, row.nbytes),)
                arguments = (_address(row), count, dtype, target)
                stage.calls.append(Call("send", sender, arguments, (row,), sends=sent))
            if receiver in site.copiers:
                whole = _only_target(gathers, receiver, box.key)
                row = whole or site.scratch(receiver, count, box.dtype)
                arrived[target, box.key] = row.reshape(box.shape)
                arguments = (_address(row), count, dtype, source)
                stage.calls.append(Call("receive", receiver, arguments, writes=(row,)))
    for gather in gathers:
        if gather.target.device in site.copiers:
            stage.after.extend(_combine(gather, combine, site, arrived, ranks))
    return stage


def _only_target(gathers: Iterable[Gather], device: Device, key: object) -> Strided | None:
    """Return the contiguous target that is a copy of a received box, or None if there is none."""
    for gather in gathers:
        if gather.target.device == device and any(part.key == key for part in gather.parts):
            view: Strided = gather.target.view
            fits = len(gather.parts) == 1 and view.is_contiguous
            return view.reshape(-1) if fits else None
    return None


def _combine(
    gather: Gather,
    combine: str,
    site: Site,
    arrived: Mapping[tuple[int, object], Strided],
    ranks: Mapping[Device, int],
) -> Sequence[Launch]:
    """Return launches that combine parts into a local target, which may be one of the parts."""
    target, copier = gather.target, site.copiers[gather.target.device]
    rank, copies = ranks[target.device], []
    parts = [p.view if p.device == target.device else arrived[rank, p.key] for p in gather.parts]
    if len(parts) > 1:
        for i, part in enumerate(parts[2:], 2):  # read after the target is written
            if _address(part) == _address(target.view):
                parts[i] = site.scratch(target.device, part.size, part.dtype).reshape(part.shape)
                copies = list(copier.copy(parts[i], part))
        return [*copies, *copier.combine(combine, target.view, parts)]
    if _address(parts[0]) == _address(target.view):
        return ()  # received in place
    return copier.copy(target.view, parts[0])
