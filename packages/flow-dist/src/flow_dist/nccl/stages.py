"""An exchange as calls of NCCL: its own collectives where they fit, else sends and receives.

A stage is one group of calls, with what has to be done on the devices before it and after it:
boxes that do not lie in a row are packed and unpacked by the devices' own kernels.  Which calls
there are depends on the exchange alone, so that all processes agree; what is packed depends on
what is local.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape
from flow_core.device import Launch, Strided, Workbench
from flow_core.exchange import Block, DevicePair, Exchange, neutral
from flow_core.sharding.topology import Device
from flow_dist.nccl.types import DTYPES, op_of
from flow_dist.phases import Gather, phases_of, routes

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of NCCL's for a local device.

    Attributes:
        primitive: its name in `flow_dist.nccl.library.PRIMITIVES`.
        device: whose communicator and stream it is for.
        arguments: those of the primitive.
        reads, writes: what it touches.
        gives: bytes that the device gives others by it, by device.
    """

    primitive: str
    device: Device
    arguments: tuple[int, ...]
    reads: tuple[Strided, ...] = ()
    writes: tuple[Strided, ...] = ()
    gives: tuple[tuple[Device, int], ...] = ()


@dataclass(slots=True)
class Stage:
    """One group of calls.

    Attributes:
        before: launches that pack.
        calls: of the local devices.
        after: launches that unpack and combine.
    """

    before: list[Launch] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    after: list[Launch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Site:
    """Where an exchange is bound.

    Attributes:
        devices: its devices, in the order of their ranks.
        benches: of the local ones.
        inputs, outputs: arrays as boxes; None on other processes' devices.
        scratch: a row of some elements on a local device, for as long as the exchange runs.
    """

    devices: tuple[Device, ...]
    benches: Mapping[Device, Workbench]
    inputs: tuple[Strided | None, ...]
    outputs: tuple[Strided | None, ...]
    scratch: Callable[[Device, int, Any], Strided]


def stages_of(exchange: Exchange, site: Site, ordered: bool) -> list[Stage]:
    """The stages of this process's part of an exchange.

    Args:
        exchange: what moves.
        site: where.
        ordered: whether floating sums are added in the exchange's order, not in NCCL's.
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
        box = site.outputs[index]
        if box is not None:
            value = neutral(operation, exchange.outputs[index].dtype)
            yield from site.benches[exchange.receivers[index]].fill(box, value)


# ------------------------------------------------------------------------------- collectives


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of an exchange: at most one input and one output per device.

    Attributes:
        exchange: all of it.
        site: where.
        given, made: positions of inputs and outputs, by device.
        blocks: its own, by (from, to).
    """

    exchange: Exchange
    site: Site
    given: Mapping[Device, int]
    made: Mapping[Device, int]
    blocks: Mapping[DevicePair, Block]

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
        """The local devices."""
        return [device for device in self.devices if device in self.site.benches]

    def others(self, device: Device) -> list[Device]:
        return [other for other in self.devices if other != device]

    def source(self, here: Device, there: Device) -> Strided:
        """The box that a local device gives another one."""
        block, box = self.blocks[here, there], self.site.inputs[self.given[here]]
        return _window(box, block.start, block.size)

    def target(self, here: Device, there: Device) -> Strided:
        """The box of a local device that is another one's, or combined from all."""
        block, box = self.blocks[here, there], self.site.outputs[self.made[there]]
        return _window(box, block.at, block.size)

    def packed(self, stage: Stage, device: Device, others: Sequence[Device]) -> Strided:
        """A row of what a local device gives some."""
        return _packed(self.site, device, stage, [self.source(device, other) for other in others])

    def unpacked(self, stage: Stage, device: Device, others: Sequence[Device]) -> Strided:
        """A row for what a local device gets from some."""
        return _unpacked(self.site, device, stage, [self.target(other, device) for other in others])

    def has_all(self, senders: Iterable[Device], receivers: Iterable[Device]) -> bool:
        """Whether there is one block for each pair of devices, and no other."""
        pairs = {(here, there) for here in senders for there in receivers}
        return pairs == set(self.blocks)

    def sizes(self) -> set[int]:
        """Elements of the blocks."""
        return {prod(block.size) for block in self.blocks.values()}


def _window(box: Strided | None, start: Shape, size: Shape) -> Strided:
    if box is None:
        raise ValueError("a box of another process")
    return box[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]


def _members(exchange: Exchange, site: Site) -> Iterator[_Member | None]:
    """The members of an exchange; None for one whose form no collective has."""
    count = len(exchange.member_names)
    inputs, outputs = len(exchange.senders) // count, len(exchange.receivers) // count
    for m in range(count):
        given = {exchange.senders[i]: i for i in range(m * inputs, (m + 1) * inputs)}
        made = {exchange.receivers[i]: i for i in range(m * outputs, (m + 1) * outputs)}
        own = [b for b in exchange.blocks if b.target in made.values()]
        ends = [(exchange.senders[b.source], exchange.receivers[b.target]) for b in own]
        blocks = dict(zip(ends, own, strict=True))
        alone = len(given) == inputs and len(made) == outputs and len(blocks) == len(own)
        inside = all(b.source in given.values() for b in own)
        yield _Member(exchange, site, given, made, blocks) if alone and inside else None


def _native(exchange: Exchange, site: Site) -> list[Stage] | None:
    """One stage of NCCL's own collectives; None where they do not fit."""
    draw = _COLLECTIVES.get(exchange.collective)
    combines = exchange.collective in REDUCTIONS
    if draw is None or not (combines or all(block.first for block in exchange.blocks)):
        return None
    stage = Stage()
    for member in _members(exchange, site):
        if member is None or not draw(member, stage):
            return None
    return [stage]


def _all_reduce(member: _Member, stage: Stage) -> bool:
    shape = member.exchange.inputs[next(iter(member.given.values()))].shape
    count = prod(shape)
    for device in member.local() if count else ():
        given = member.site.inputs[member.given[device]]
        made = member.site.outputs[member.made[device]]
        stage.calls.append(_call(member, "all_reduce", device, given, made, count, member.op))
    return True


def _all_gather(member: _Member, stage: Stage) -> bool:
    devices = member.devices
    if not member.has_all(devices, devices) or len(member.sizes()) != 1:
        return False
    if any(len({_start(member, s, t) for t in devices}) != 1 for s in devices):
        return False  # parts that differ by target
    (count,) = member.sizes()
    for device in member.local():
        given = member.packed(stage, device, [device])
        made = _unpacked(
            member.site, device, stage, [member.target(other, device) for other in devices]
        )
        gives = [(other, count * member.itemsize) for other in member.others(device)]
        call = _call(member, "all_gather", device, given, made, count, gives=gives)
        stage.calls.append(call)
    return True


def _start(member: _Member, here: Device, there: Device) -> tuple[Shape, Shape]:
    block = member.blocks[here, there]
    return block.start, block.size


def _all_to_all(member: _Member, stage: Stage) -> bool:
    devices = member.devices
    if not member.has_all(devices, devices) or len(member.sizes()) != 1:
        return False
    (count,) = member.sizes()
    for device in member.local():
        given = _packed(
            member.site, device, stage, [member.source(device, other) for other in devices]
        )
        made = _unpacked(
            member.site, device, stage, [member.target(other, device) for other in devices]
        )
        gives = [(other, count * member.itemsize) for other in member.others(device)]
        stage.calls.append(_call(member, "all_to_all", device, given, made, count, gives=gives))
    return True


def _reduce_scatter(member: _Member, stage: Stage) -> bool:
    """One call where all parts are equal, else one reduction per part that is not empty."""
    devices = member.devices
    targets = [device for device in devices if (devices[0], device) in member.blocks]
    if not member.has_all(devices, targets) or not _are_fresh(member):
        return False
    if targets != list(devices) or len(member.sizes()) != 1:
        for root in targets:
            _reduce_to(member, stage, root)
        return True
    (count,) = member.sizes()
    for device in member.local():
        given = _packed(
            member.site, device, stage, [member.source(device, other) for other in devices]
        )
        made = member.unpacked(stage, device, [device])
        gives = [(other, count * member.itemsize) for other in member.others(device)]
        call = _call(member, "reduce_scatter", device, given, made, count, member.op, gives=gives)
        stage.calls.append(call)
    return True


def _are_fresh(member: _Member) -> bool:
    """Whether all blocks of a target fill one box, and nothing that was there before counts."""
    found: dict[Device, list[Block]] = {}
    for (_, there), block in member.blocks.items():
        found.setdefault(there, []).append(block)
    return all(
        blocks[0].first
        and not any(b.first for b in blocks[1:])
        and len({(b.at, b.size) for b in blocks}) == 1
        for blocks in found.values()
    )


def _reduce(member: _Member, stage: Stage) -> bool:
    roots = list(member.made)
    fits = len(roots) == 1 and roots[0] in member.given
    if not fits or not member.has_all(member.devices, roots) or not _are_fresh(member):
        return False
    _reduce_to(member, stage, roots[0])
    return True


def _reduce_to(member: _Member, stage: Stage, root: Device) -> None:
    """All devices combine what is one device's."""
    for device in member.local():
        given = member.packed(stage, device, [root])
        made = given
        if device == root:
            made = member.unpacked(stage, device, [root])
        gives = () if device == root else ((root, given.nbytes),)
        place = (member.op, member.devices.index(root))
        call = _call(member, "reduce", device, given, made, given.size, *place, gives=gives)
        stage.calls.append(call if device == root else replace(call, writes=()))


def _broadcast(member: _Member, stage: Stage) -> bool:
    if len(member.given) != 1:
        return False
    (root,) = member.given
    targets = [device for device in member.devices if device in member.made]
    same = len({_start(member, root, there) for _, there in member.blocks}) == 1
    reached = {*targets, root} == set(member.devices)
    if not (same and reached and member.has_all([root], targets)):
        return False
    for device in member.local():
        is_root, takes = device == root, device in member.made
        given = member.packed(stage, root, targets[:1]) if is_root else None
        made = member.unpacked(stage, device, [root]) if takes else given
        given = made if given is None else given
        size = 0 if given is None else given.size
        gives = [(t, size * member.itemsize) for t in targets if t != root] if is_root else ()
        place = member.devices.index(root)
        call = _call(member, "broadcast", device, given, made, size, place, gives=gives)
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
"""What NCCL has a primitive for; each function adds to a stage, or says that it does not fit."""


def _call(
    member: _Member,
    primitive: str,
    device: Device,
    given: Strided | None,
    made: Strided | None,
    count: int,
    *rest: int,
    gives: Sequence[tuple[Device, int]] = (),
) -> Call:
    if given is None or made is None:
        raise ValueError(f"{primitive} on {device}, which has no arrays here")
    arguments = (_address(given), _address(made), count, member.dtype, *rest)
    return Call(primitive, device, arguments, (given,), (made,), tuple(gives))


def _address(box: Strided) -> int:
    return int(box.array.address) + box.offset * int(box.dtype.itemsize)


# ----------------------------------------------------------------------------------- packing


def _in_a_row(boxes: Sequence[Strided]) -> Strided | None:
    """Boxes as one, where they lie one after the other."""
    follow = all(a.array is b.array and a.offset + a.size == b.offset for a, b in pairwise(boxes))
    if not (follow and all(box.is_contiguous for box in boxes)):
        return None
    size = sum(box.size for box in boxes)
    return Strided(boxes[0].array, boxes[0].offset, (size,), (1,))


def _packed(site: Site, device: Device, stage: Stage, boxes: Sequence[Strided]) -> Strided:
    """Boxes in a row, copied there first unless they lie so."""
    found = _in_a_row(boxes)
    if found is None:
        found, parts = _scratch(site, device, boxes)
        for part, box in zip(parts, boxes, strict=True):
            stage.before.extend(site.benches[device].copy(part, box))
    return found


def _unpacked(site: Site, device: Device, stage: Stage, boxes: Sequence[Strided]) -> Strided:
    """A row to fill, from where boxes are copied unless they lie so."""
    found = _in_a_row(boxes)
    if found is None:
        found, parts = _scratch(site, device, boxes)
        for part, box in zip(parts, boxes, strict=True):
            stage.after.extend(site.benches[device].copy(box, part))
    return found


def _scratch(site: Site, device: Device, boxes: Sequence[Strided]) -> tuple[Strided, list[Strided]]:
    """A new row, and its parts in the shapes of some boxes."""
    row = site.scratch(device, sum(box.size for box in boxes), boxes[0].dtype)
    ends = list(accumulate(box.size for box in boxes))
    parts = [
        row[end - box.size : end].reshape(box.shape) for end, box in zip(ends, boxes, strict=True)
    ]
    return row, parts


# -------------------------------------------------------------------------- sends, receives


def _pairwise(exchange: Exchange, site: Site) -> list[Stage]:
    """The phases of any exchange, by sends and receives; parts are combined in its order."""
    phases = phases_of(replace(exchange, fills=()), site.inputs, site.outputs)
    return [_phase(gathers, exchange.combine, site) for gathers in phases.phases]


def _phase(gathers: Sequence[Gather], combine: str, site: Site) -> Stage:
    stage, ranks = Stage(), {device: rank for rank, device in enumerate(site.devices)}
    arrived: dict[tuple[int, object], Strided] = {}
    for (source, target), boxes in routes(gathers, ranks.__getitem__).items():
        here, there = site.devices[source], site.devices[target]
        for box in boxes:
            dtype = DTYPES[as_dtype(box.dtype).name]
            count = prod(box.shape)
            if here in site.benches:
                row = _packed(site, here, stage, [box.view])
                sent = ((there, row.nbytes),)
                given = (_address(row), count, dtype, target)
                stage.calls.append(Call("send", here, given, (row,), gives=sent))
            if there in site.benches:
                row = _only_target(gathers, there, box.key) or site.scratch(there, count, box.dtype)
                arrived[target, box.key] = row.reshape(box.shape)
                taken = (_address(row), count, dtype, source)
                stage.calls.append(Call("receive", there, taken, writes=(row,)))
    for gather in gathers:
        if gather.target.device in site.benches:
            stage.after.extend(_gathered(gather, combine, site, arrived, ranks))
    return stage


def _only_target(gathers: Iterable[Gather], device: Device, key: object) -> Strided | None:
    """The row of a device that is nothing but a box that arrives, None where there is none."""
    for gather in gathers:
        if gather.target.device == device and any(part.key == key for part in gather.parts):
            view: Strided = gather.target.view
            fits = len(gather.parts) == 1 and view.is_contiguous
            return view.reshape(-1) if fits else None
    return None


def _gathered(
    gather: Gather,
    combine: str,
    site: Site,
    arrived: Mapping[tuple[int, object], Strided],
    ranks: Mapping[Device, int],
) -> Sequence[Launch]:
    """What is done with the parts of a local target, which may be one of them."""
    target, bench = gather.target, site.benches[gather.target.device]
    rank, copies = ranks[target.device], []
    parts = [p.view if p.device == target.device else arrived[rank, p.key] for p in gather.parts]
    if len(parts) > 1:
        for i, part in enumerate(parts[2:], 2):  # read after the target is written
            if _address(part) == _address(target.view):
                parts[i] = site.scratch(target.device, part.size, part.dtype).reshape(part.shape)
                copies = list(bench.copy(parts[i], part))
        return [*copies, *bench.combine(combine, target.view, parts)]
    if _address(parts[0]) == _address(target.view):
        return ()  # received where it belongs
    return bench.copy(target.view, parts[0])
