"""The groups of devices of a reshard step that exchange data, described by arrays over ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from flow_core.base.shapes import Shape
from flow_core.comm.pieces import listed_pieces
from flow_core.comm.roles import COPY, FILL, IN_PLACE, PAD, SLICE, partial_roles
from flow_core.sharding.layouts import Ints, TensorLayout, coordinate_arrays
from flow_core.sharding.sbp import Broadcast, Partial, Split
from flow_core.sharding.topology import devices_of

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of a step that exchange pieces with each other."""

    name: str  # of the collective
    sources: tuple[int, ...]  # ranks in the source placement
    targets: tuple[int, ...]  # ranks in the target placement
    crosses: bool  # whether any piece crosses devices


class Groups(Sequence[Group]):
    """The groups of a step, without the targets that already hold their part.

    The groups are described by arrays, so that only those that are needed become objects.
    """

    sources: Ints  # the number of each source rank's group; -1 for a rank in no group
    targets: Ints  # likewise of the target ranks
    filled: BoolArray  # whether each target rank has elements that no piece covers
    is_single = False

    def names(self) -> Iterable[str]:
        """Return the distinct names of the groups that transfer data, or else of all groups."""
        moving = [group for group in self if group.crosses] or self
        return dict.fromkeys(group.name for group in moving)

    def labels(self) -> Iterable[str]:
        return [group.name for group in self]

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> list[Group]: ...

    def __getitem__(self, index: int | slice) -> Group | list[Group]:
        if isinstance(index, slice):
            return [self._group(i) for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._group(index)

    @abstractmethod
    def _group(self, index: int) -> Group:
        """Return the group with a number."""


class Reduced(Groups):
    """The groups of an all-reduce, as rows of ranks."""

    def __init__(self, groups: Sequence[tuple[int, ...]], size: int) -> None:
        self._groups = groups
        self.sources = self.targets = np.full(size, -1, np.int64)
        for number, ranks in enumerate(groups):
            self.sources[list(ranks)] = number
        self.filled = np.zeros(size, np.bool_)

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> Iterable[str]:
        return ("all_reduce",)

    def labels(self) -> Iterable[str]:
        return ["all_reduce"] * len(self)

    def _group(self, index: int) -> Group:
        ranks = self._groups[index]
        return Group("all_reduce", ranks, ranks, True)


class Even(Groups):
    """One group of all devices with parts, and one for each other device."""

    is_single = True

    def __init__(self, form: str, given: int, taken: int, size: int) -> None:
        self._form, self._given, self._joined = form, given, max(given, taken)
        ranks = np.arange(size)
        self.sources = np.where(ranks < self._given, 0, -1)
        self.targets = np.maximum(ranks - self._joined + 1, 0)
        self.filled = np.zeros(len(ranks), np.bool_)

    def __len__(self) -> int:
        return 1 + len(self.targets) - self._joined

    def names(self) -> Iterable[str]:
        return (self._form,)

    def labels(self) -> Iterable[str]:
        return [self._form, *["copy"] * (len(self) - 1)]

    def _group(self, index: int) -> Group:
        if index:
            return Group("copy", (), (self._joined + index - 1,), False)
        return Group(self._form, tuple(range(self._given)), tuple(range(self._joined)), True)


class Own(Groups):
    """One group for each device, which makes its part from what it holds."""

    is_single = True

    def __init__(self, parts: Ints) -> None:
        self._parts = parts
        self._ranks = np.flatnonzero(parts != IN_PLACE)
        self.targets = np.where(parts == IN_PLACE, -1, np.cumsum(parts != IN_PLACE) - 1)
        self.sources = np.where((parts == SLICE) | (parts == PAD), self.targets, -1)
        self.filled = (parts == PAD) | (parts == FILL)

    def __len__(self) -> int:
        return len(self._ranks)

    def names(self) -> Iterable[str]:
        return dict.fromkeys(self.labels())

    def labels(self) -> Iterable[str]:
        return [_OWN_NAMES[code] for code in self._parts[self._ranks].tolist()]

    def _group(self, index: int) -> Group:
        rank = int(self._ranks[index])
        sources = (rank,) if self.sources[rank] >= 0 else ()
        return Group(_OWN_NAMES[int(self._parts[rank])], sources, (rank,), False)


_OWN_NAMES = {COPY: "copy", SLICE: "slice", PAD: "zero_pad", FILL: "zero_pad"}


class Rooted(Groups):
    """One group with all that a single device sends or receives, and one for each other target."""

    is_single = True

    def __init__(self, name: str, sources: BoolArray, targets: BoolArray, other: Ints) -> None:
        """Describe the groups.

        Args:
            name: the name of the large group, unless it is empty.
            sources, targets: whether each rank is in the large group.
            other: what each other target rank does, `IN_PLACE`, `COPY` or `FILL`.
        """
        self._name, self._other = name, other
        self._given, self._taken = np.flatnonzero(sources), np.flatnonzero(targets)
        starts = (other != IN_PLACE) & ~targets
        starts[self._taken[:1]] = True
        self._ranks = np.flatnonzero(starts)
        number = np.cumsum(starts) - 1
        self._large = int(number[self._taken[0]]) if len(self._taken) else -1
        self.targets = np.where(targets, self._large, np.where(starts, number, -1))
        self.sources = np.where(sources, self._large, -1)
        self.filled = other == FILL

    def __len__(self) -> int:
        return len(self._ranks)

    def names(self) -> Iterable[str]:
        return dict.fromkeys(self.labels()) if self._large < 0 else (self._name,)

    def labels(self) -> Iterable[str]:
        found = [_OWN_NAMES.get(code, "") for code in self._other[self._ranks].tolist()]
        if self._large >= 0:
            found[self._large] = self._name
        return found

    def _group(self, index: int) -> Group:
        if index == self._large:
            ends = tuple(self._given.tolist()), tuple(self._taken.tolist())
            return Group(self._name, *ends, True)
        rank = int(self._ranks[index])
        return Group(_OWN_NAMES[int(self._other[rank])], (), (rank,), False)


class Fans(Groups):
    """One group for each sender and those that take their parts from it, one for each other target.

    The two ends have no device in common.
    """

    def __init__(
        self, taken: Ints, sources: int, names: tuple[str, str], filled: BoolArray
    ) -> None:
        """Describe the groups.

        Args:
            taken: the source rank from which each target rank takes its whole part, -1 if none.
            sources: the number of source ranks.
            names: the names of groups with one target, and of those with several.
            filled: whether each target rank makes a part of neutral elements.
        """
        self._taken, self._names, self.filled = taken, names, filled
        key = np.where(taken < 0, sources + np.arange(len(taken)), taken)
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        self._first = np.sort(first)
        self.targets = np.searchsorted(self._first, first)[number.reshape(-1)]
        self.sources = np.full(sources, -1, np.int64)
        self.sources[taken[taken >= 0]] = self.targets[taken >= 0]

    def __len__(self) -> int:
        return len(self._first)

    def names(self) -> Iterable[str]:
        moving = self._taken[self._first] >= 0
        found = zip(self.labels(), moving.tolist(), strict=True)
        return dict.fromkeys(name for name, moves in found if moves or not moving.any())

    def labels(self) -> Iterable[str]:
        several = np.bincount(self.targets) > 1
        return [
            self._names[int(many)] if self._taken[rank] >= 0 else _filled_name(self.filled[rank])
            for rank, many in zip(self._first.tolist(), several.tolist(), strict=True)
        ]

    def _group(self, index: int) -> Group:
        targets = tuple(np.flatnonzero(self.targets == index).tolist())
        source = int(self._taken[targets[0]])
        if source < 0:
            return Group(_filled_name(self.filled[targets[0]]), (), targets, False)
        return Group(self._names[len(targets) > 1], (source,), targets, True)


def _filled_name(is_filled: bool) -> str:
    return "zero_pad" if is_filled else "copy"


def passed_on(shape: Shape, source: TensorLayout, target: TensorLayout) -> Groups | None:
    """Return the groups of a step between disjoint devices, of which each takes its part from one.

    If each takes it from all, there is a large group.  The result is None for other steps.
    """
    if not set(devices_of(source.placement)).isdisjoint(devices_of(target.placement)):
        return None
    if len(source.sbp) > 1 or len(target.sbp) > 1 or 0 in shape:
        return None
    taken = sole_sources(shape, source, target)
    if taken is None:
        return None if source.sbp == target.sbp else _from_all(shape, source, target)
    several = "broadcast" if isinstance(target.sbp[0], Broadcast) else "scatter"
    copied = _copy_name(source, target)
    names = (copied, copied) if copied else ("send_recv", several)
    filled = (taken < 0) & (target.sizes(shape) > 0)
    return Fans(taken, source.placement.size, names, filled)


def _from_all(shape: Shape, source: TensorLayout, target: TensorLayout) -> Rooted:
    """Return the groups of a step in which each target takes pieces from all sources with parts."""
    (a,), (b,) = source.sbp, target.sbp
    sent, taken = source.sizes(shape) > 0, target.sizes(shape) > 0
    filled = np.full(len(taken), FILL if isinstance(b, Partial) else COPY)
    if isinstance(b, Partial):
        taken[1:] = False
    if isinstance(a, Partial) and len(sent) > 1:
        names = "reduce", "reduce_scatter"
    elif sent.sum() == 1:
        names = "send_recv", "broadcast" if isinstance(b, Broadcast) else "scatter"
    else:
        names = "gather", "all_to_all"
    name = _copy_name(source, target) or names[int(taken.sum() > 1)]
    return Rooted(name, sent, taken, np.where(taken, IN_PLACE, filled))


def sole_sources(shape: Shape, source: TensorLayout, target: TensorLayout) -> Ints | None:
    """Return the source rank from which each target rank takes its whole part, -1 if from none.

    The result is None if some rank takes its part from several ranks, or if the placements are
    equal or one of them is a grid.
    """
    if source.placement == target.placement or len(source.sbp) > 1 or len(target.sbp) > 1:
        return None
    (a,), size = source.sbp, target.placement.size
    if a == target.sbp[0] and isinstance(a, Split) and source.placement.size == size:
        return np.where(target.sizes(shape) > 0, np.arange(size), -1)
    pieces = listed_pieces(shape, source, target) if isinstance(a, Broadcast) else None
    if pieces is None:
        return None
    given, taken, _ = pieces
    found = np.full(size, -1, np.int64)
    found[taken] = given
    return found


def rooted(shape: Shape, source: TensorLayout, target: TensorLayout) -> Rooted | None:
    """Return the groups of a step from, or to, a single other device; None for other steps."""
    if source.placement == target.placement or 0 in shape:
        return None
    if source.placement.size == 1:
        return _from_one(shape, source, target)
    if target.placement.size == 1 and len(source.sbp) == 1:
        return _to_one(shape, source, target)
    return None


def _from_one(shape: Shape, source: TensorLayout, target: TensorLayout) -> Rooted | None:
    size, bounds = target.placement.size, target.bounds(shape)
    at = coordinate_arrays(target.placement.hierarchy)
    takes, whole, own = np.ones(size, np.bool_), np.ones(size, np.bool_), np.zeros(size, np.bool_)
    own[_ranks_of(source, target)] = True
    for d in partial_roles(source, target).first:
        takes &= at[d] == 0
    empty = np.zeros(size, np.bool_)
    for axis, (low, high) in bounds.items():
        empty |= low >= high
        whole &= (low == 0) & (high == shape[axis])
    takes &= ~empty
    held = takes & whole & own
    sent = takes & ~held
    crosses = np.any(sent & ~own)
    if np.any(sent) and not crosses:
        return None
    first = np.argmax(sent)
    same = all(np.all((low == low[first])[sent]) for low, _ in bounds.values())
    joined = sent | (own & ~held) if crosses else np.zeros_like(sent)
    name = _copy_name(source, target)
    if not name:
        name = "send_recv" if joined.sum() == 1 else "broadcast" if same else "scatter"
    other = np.where(held, IN_PLACE, np.where(empty, COPY, np.where(takes, IN_PLACE, FILL)))
    return Rooted(name, np.ones(1, np.bool_), joined, other)


def _to_one(shape: Shape, source: TensorLayout, target: TensorLayout) -> Rooted | None:
    (sbp,), own = source.sbp, _ranks_of(target, source)
    sent = source.sizes(shape) > 0
    if isinstance(sbp, Broadcast):
        sent = np.arange(len(sent)) == nearest(source, target)
    crosses = bool(np.any(np.delete(sent, own)))
    name = "reduce" if isinstance(sbp, Partial) else _copy_name(source, target)
    name = name or ("send_recv" if sent.sum() == 1 else "gather")
    return Rooted(name, sent & crosses, np.array([crosses]), np.array([IN_PLACE]))


def nearest(source: TensorLayout, target: TensorLayout) -> int:
    """Return the rank from which the only device of a layout takes what all ranks hold."""
    machine, own = target.placement.devices[0][0], _ranks_of(target, source)
    close = [r for r, (m, _) in enumerate(source.placement.devices) if m == machine]
    return (own or close or [0])[0]


def _ranks_of(one: TensorLayout, many: TensorLayout) -> list[int]:
    """Return the rank, among the devices of a layout, of the only device of another one."""
    if one.placement.device_type != many.placement.device_type:
        return []
    (device,) = one.placement.devices
    return [many.placement.devices.index(device)] if device in many.placement.devices else []


def _copy_name(source: TensorLayout, target: TensorLayout) -> str:
    """Return the name of copies between device types; empty for a single type."""
    types = source.placement.device_type, target.placement.device_type
    if types[0] == types[1]:
        return ""
    return "copy_h2d" if types[0] == "cpu" else "copy_d2h" if types[1] == "cpu" else "copy_d2d"
