"""Classes of devices: devices that run the same ops on parts of the same sizes.

A plan for one device of each class determines the plan of every other device.  Two devices are in
the same class if they hold parts of the same shapes of all values, and if, in every reshard step,
their groups have the same form and members of the same classes.  The classes are found by partition
refinement: the first partition is by shapes and by the forms of groups, and each round divides the
classes whose groups have members of different classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from flow_core.base.shapes import Shape
from flow_core.compiler.reshard.groups import Groups
from flow_core.compiler.reshard.steps import ReshardStep, groups_of
from flow_core.sharding.layouts import Ints, TensorLayout
from flow_core.sharding.topology import Device, Placement, devices_of

Classes = tuple[tuple[Device, ...], ...]
"""The devices of each class."""


@dataclass(slots=True)
class Layouts:
    """The layouts and reshard steps of a physical graph, from which classes follow."""

    parts: dict[tuple[Shape, TensorLayout], None] = field(default_factory=dict)  # of all values
    steps: dict[ReshardStep, None] = field(default_factory=dict)

    def kept(self, wanted: Collection[Device]) -> tuple[Classes, frozenset[Device]]:
        """Return the classes, and the devices of a plan for the given devices and all classes.

        The plan has the first device of each class, and from each group with one of its devices at
        least one member of every class: the other members then do not change the times at which
        an exchange can start.
        """
        ends = [end.placement for step in self.steps for end in (step.source, step.target)]
        devices = _Devices([*(layout.placement for _, layout in self.parts), *ends])
        steps = [_Ends.of(step, devices) for step in self.steps]
        devices.divide_by_shape(self.parts)
        for step in steps:
            devices.divide_by_role(step)
        while devices.divide_by_group(steps):
            pass
        classes, first = devices.classes()
        kept = {*(devices.number[d] for d in wanted if d in devices.number), *first}
        queue, seen = sorted(kept), [set[int]() for _ in steps]
        while queue:
            added = set[int]()
            for step, known in zip(steps, seen, strict=True):
                for group in sorted(step.groups_with(queue) - known):
                    known.add(group)
                    for members in step.members(group):
                        added |= devices.missing(members, kept | added)
            kept |= added
            queue = sorted(added)
        return classes, frozenset({*wanted, *(devices.all[i] for i in kept)})


class _Devices:
    """The devices of a graph, each with the number of its class so far."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        distinct = dict.fromkeys(placements)
        self.all = list(dict.fromkeys(d for p in distinct for d in devices_of(p)))
        self.number = {device: i for i, device in enumerate(self.all)}  # positions in the group
        self._ranks = {
            p: np.array([self.number[d] for d in devices_of(p)], np.int64) for p in distinct
        }
        self.group = np.zeros(len(self.all), np.int64)  # the number of the class of each device
        self._seen = set[tuple[Placement, bytes]]()

    def ranks(self, placement: Placement) -> Ints:
        """Return, for each rank, the position of its device among all devices."""
        return self._ranks[placement]

    def divide(self, placement: Placement, keys: Ints) -> None:
        """Divide classes by a key, not negative, of each rank of a placement."""
        mark = placement, keys.tobytes()
        if mark not in self._seen:
            self._seen.add(mark)
            column = np.zeros_like(self.group)
            column[self.ranks(placement)] = keys + 1
            _, column = np.unique(column, return_inverse=True)
            key = self.group * (column.max() + 1) + column
            self.group = np.unique(key, return_inverse=True)[1]

    def divide_by_shape(self, parts: Collection[tuple[Shape, TensorLayout]]) -> None:
        """Divide classes by the shapes of the parts that devices hold."""
        for shape, layout in parts:
            placement = layout.placement
            self.divide(placement, np.zeros(placement.size, np.int64))
            for low, high in layout.bounds(shape).values():
                self.divide(placement, high - low)

    def divide_by_role(self, step: _Ends) -> None:
        """Divide classes by what their devices do in a step."""
        forms = step.forms()
        groups = step.groups
        for end, numbers, filled in (
            (step.source, groups.sources, np.zeros_like(groups.sources)),
            (step.target, groups.targets, groups.filled),
        ):
            self.divide(end, np.where(numbers < 0, 0, 1 + 2 * forms[numbers] + filled))

    def divide_by_group(self, steps: Sequence[_Ends]) -> bool:
        """Divide classes whose groups have members of different classes; False if none has."""
        count = self.group.max() + 1
        known = set[object]()
        for step in steps:
            if step.groups.is_single or step.key in known:
                continue
            known.add(step.key)
            found: dict[object, int] = {}
            forms = np.zeros(len(step.groups) + 1, np.int64)
            for number in range(len(step.groups)):
                form = tuple(
                    frozenset(Counter(self.group[end].tolist()).items())
                    for end in step.members(number)
                )
                forms[number] = found.setdefault(form, len(found) + 1)
            self.divide(step.source, forms[step.groups.sources])
            self.divide(step.target, forms[step.groups.targets])
        return bool(self.group.max() + 1 > count)

    def classes(self) -> tuple[Classes, list[int]]:
        """Return the classes and the position of the first device of each, in order."""
        found: dict[int, list[int]] = {}
        for position, number in enumerate(self.group.tolist()):
            found.setdefault(number, []).append(position)
        members = [tuple([self.all[i] for i in row]) for row in found.values()]
        return tuple(members), [row[0] for row in found.values()]

    def missing(self, members: Ints, kept: Collection[int]) -> set[int]:
        """Return the first member of each class of which no member is kept."""
        numbers = self.group[members]
        present = {int(self.group[i]) for i in members.tolist() if i in kept}
        found, first = np.unique(numbers, return_index=True)
        return {
            int(members[i])
            for number, i in zip(found.tolist(), first.tolist(), strict=True)
            if number not in present
        }


@dataclass(frozen=True, slots=True)
class _Ends:
    """The groups of a step, with the devices at both ends."""

    key: object  # equal for steps with equal groups
    source: Placement
    target: Placement
    groups: Groups
    senders: Ints  # the position of the device of each rank
    receivers: Ints
    rows: tuple[Sequence[Ints], Sequence[Ints]]  # positions, by group

    @classmethod
    def of(cls, step: ReshardStep, devices: _Devices) -> _Ends:
        groups = groups_of(step)
        source, target = step.source.placement, step.target.placement
        senders, receivers = devices.ranks(source), devices.ranks(target)
        key = source, target, groups.sources.tobytes(), groups.targets.tobytes()
        rows = (
            _rows(groups.sources, senders, len(groups)),
            _rows(groups.targets, receivers, len(groups)),
        )
        return cls(key, source, target, groups, senders, receivers, rows)

    def members(self, group: int) -> tuple[Ints, Ints]:
        """Return the positions of the senders and of the receivers of a group."""
        return self.rows[0][group], self.rows[1][group]

    def groups_with(self, positions: Sequence[int]) -> set[int]:
        """Return the groups that have one of some devices."""
        found = set[int]()
        for numbers, devices in (
            (self.groups.sources, self.senders),
            (self.groups.targets, self.receivers),
        ):
            found.update(numbers[np.isin(devices, positions)].tolist())
        return found - {-1}

    def forms(self) -> Ints:
        """Return a number for the name and the sizes of each group."""
        found: dict[object, int] = {}
        sizes = [
            np.bincount(numbers[numbers >= 0], minlength=len(self.groups)).tolist()
            for numbers in (self.groups.sources, self.groups.targets)
        ]
        rows = zip(self.groups.labels(), *sizes, strict=True)
        return np.array([*(found.setdefault(row, len(found)) for row in rows), 0], np.int64)


def _rows(numbers: Ints, devices: Ints, count: int) -> Sequence[Ints]:
    """Return the devices of each group, given the number of the group of each device."""
    order = np.argsort(numbers, kind="stable")
    return np.split(devices[order], np.searchsorted(numbers[order], np.arange(count + 1)))[1:-1]
