"""Classes of devices: devices that run the same ops on parts of the same sizes.

A plan for one device of each class determines the plan of every other device.  Two devices are in
the same class if they hold parts of the same shapes of all values, and if, in every reshard step,
their groups have the same form and members of the same classes.  The classes are found by partition
refinement: the first partition is by shapes and by the forms of groups, and each round divides the
classes whose groups have members of different classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from flow_core.base.shapes import Shape
from flow_core.compiler.reshard.steps import (
    Group,
    ReshardStep,
    TensorLayout,
    covers,
    even_form,
    groups_of,
)
from flow_core.compiler.reshard.traffic import devices_of
from flow_core.sharding.sbp import region_shape
from flow_core.sharding.topology import Device

Classes = tuple[tuple[Device, ...], ...]
"""The devices of each class."""


Ends = tuple[tuple[Device, ...], tuple[Device, ...]]
"""The senders and the receivers of a group of devices that exchange data."""


@dataclass(slots=True)
class Layouts:
    """The layouts and reshard steps of a physical graph, from which classes follow.

    Attributes:
        parts: the (shape, layout) of all values, in order.
        steps: the reshard steps, in order.
    """

    parts: dict[tuple[Shape, TensorLayout], None] = field(default_factory=dict)
    steps: dict[ReshardStep, None] = field(default_factory=dict)

    def kept(self, wanted: Collection[Device]) -> tuple[Classes, frozenset[Device]]:
        """Return the classes, and the devices of a plan for the given devices and all classes.

        The plan has the first device of each class, and from each group with one of its devices at
        least one member of every class: the other members then do not change the times at which
        an exchange can start.
        """
        groups = list(self._groups())
        classes = _refined(self._first_keys(groups), groups)
        number = {device: i for i, members in enumerate(classes) for device in members}
        kept = {*wanted, *(members[0] for members in classes)}
        of_device: dict[Device, list[int]] = {}
        for i, group in enumerate(groups):
            for device in {*group[0], *group[1]}:
                of_device.setdefault(device, []).append(i)
        queue, seen = list(kept), set[int]()
        while queue:
            for i in of_device.get(queue.pop(), ()):
                if i not in seen:
                    seen.add(i)
                    for end in groups[i]:
                        queue += _missing(end, number, kept)
        return classes, frozenset(kept)

    def _groups(self) -> Iterable[Ends]:
        """Yield the senders and receivers of every group, each form of group once."""
        seen = set[Ends]()
        for step in self.steps:
            for group in groups_of(step):
                ends = _ends(step, group)
                if ends not in seen:
                    seen.add(ends)
                    yield ends

    def _first_keys(self, groups: Sequence[Ends]) -> dict[Device, tuple[object, ...]]:
        """Return what distinguishes devices before refinement: shapes, and roles in steps."""
        found: dict[Device, list[object]] = {}
        for number, (shape, layout) in enumerate(self.parts):
            for rank, device in enumerate(devices_of(layout.placement)):
                held = region_shape(layout.region(shape, rank))
                found.setdefault(device, []).append((number, held))
        for number, step in enumerate(self.steps):
            form = even_form(step)
            for group in groups_of(step):
                senders, receivers = _ends(step, group)
                sizes = number, group.name, len(senders), len(receivers)
                for device in senders:
                    found.setdefault(device, []).append((*sizes, "sends"))
                for rank, device in zip(group.targets, receivers, strict=True):
                    filled = not (step.groups or form or covers(step, rank))
                    found.setdefault(device, []).append((*sizes, "receives", filled))
        return {device: tuple(keys) for device, keys in found.items()}


def _ends(step: ReshardStep, group: Group) -> Ends:
    """Return the senders and the receivers of a group."""
    sources, targets = devices_of(step.source.placement), devices_of(step.target.placement)
    return (
        tuple([sources[rank] for rank in group.sources]),
        tuple([targets[rank] for rank in group.targets]),
    )


def _refined(
    keys: dict[Device, tuple[object, ...]],
    groups: Sequence[Ends],
) -> Classes:
    """Divide classes until all groups of a class's devices have members of the same classes."""
    count = 0
    while True:
        numbers: dict[object, int] = {}
        number = {device: numbers.setdefault(key, len(numbers)) for device, key in keys.items()}
        if len(numbers) == count:
            break
        count = len(numbers)
        around: dict[Device, list[object]] = {}
        for ends in groups:
            form = tuple(frozenset(Counter(number[d] for d in end).items()) for end in ends)
            for device in {*ends[0], *ends[1]}:
                around.setdefault(device, []).append(form)
        keys = {
            device: (n, frozenset(Counter(around.get(device, ())).items()))
            for device, n in number.items()
        }
    found: dict[int, list[Device]] = {}
    for device, n in number.items():
        found.setdefault(n, []).append(device)
    return tuple(map(tuple, found.values()))


def _missing(
    end: Sequence[Device], number: dict[Device, int], kept: set[Device]
) -> Iterable[Device]:
    """Keep the first member of each class of which no member is kept, and return these members."""
    present = {number[device] for device in end if device in kept}
    added = []
    for device in end:
        if number[device] not in present:
            present.add(number[device])
            kept.add(device)
            added.append(device)
    return added
