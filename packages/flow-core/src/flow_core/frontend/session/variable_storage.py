"""The memory of variables: parts on devices, which together hold the logical value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from flow_core.base.arrays import Array, DeviceArray
from flow_core.base.errors import OutOfMemoryError, UnsupportedError
from flow_core.base.philox import op_seed
from flow_core.base.shapes import Shape, num_elements
from flow_core.device import Arena, World
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.initializers import generate
from flow_core.sharding.layouts import TensorLayout, regions_of
from flow_core.sharding.sbp import Region, Split, region_shape
from flow_core.sharding.topology import Device, Placement, devices_of

ReadRegion: TypeAlias = Callable[[Region], Array]
"""A function that returns the values of a region of a logical variable."""


@dataclass(slots=True)
class Part:
    """The part of a variable that one device holds."""

    region: Region  # of the logical variable
    array: DeviceArray | None  # None if another process owns the device, as are driver and arena
    driver: Any
    root: int = 0  # the process that owns the device
    arena: Arena | None = None

    def view(self, shape: Shape | None) -> DeviceArray | None:
        if self.arena is None or self.array is None or shape in (None, self.array.shape):
            return self.array
        return self.arena.view(0, shape, self.array.dtype)

    @property
    def window(self) -> tuple[slice, ...]:
        """Return the region of the part as slices of the logical variable."""
        return window(self.region)


@dataclass(slots=True)
class StoredVariable:
    """The memory of one variable: parts on devices, which together hold the logical value."""

    info: VariableInfo
    memory: str  # the device type whose kernels can read the parts
    # Reads regions of the value that new parts start with, as long as some regions have no part;
    # None otherwise.
    first: ReadRegion | None = None
    provisional: bool = False  # whether no job has requested the variable, to know its layout
    blank: bool = False  # whether the parts are allocated only, and hold no values yet
    world: World | None = None  # of the processes that hold parts, if several
    # Whether all parts still hold the values of ``first`` (without it, of the initializer); equal
    # in all processes.
    pristine: bool = True
    _parts: dict[Device, Part] = field(default_factory=dict)
    _layout: TensorLayout | None = None

    @property
    def parts(self) -> dict[Device, Part]:
        """The parts by device; those of a layout that was adopted are made on first use."""
        if self._layout is not None:
            layout, own, self._layout = self._layout, self._parts, None
            regions = regions_of(self.info.type.shape, layout)
            self._parts = {
                device: own.get(device) or Part(region, None, None, self._root(device))
                for device, region in zip(devices_of(layout.placement), regions, strict=True)
            }
        return self._parts

    def _root(self, device: Device) -> int:
        return 0 if self.world is None else self.world.owner(device)

    def part(self, device: Device) -> Part | None:
        """Return the part of a device, None if it has none."""
        return self._parts.get(device) or self.parts.get(device)

    def adopt(self, layout: TensorLayout, own: dict[Device, Part]) -> None:
        """Hold the variable, of which no device has a part, in a layout."""
        self._parts, self._layout = own, layout

    @property
    def has_parts(self) -> bool:
        """Whether any device has a part."""
        return self._layout is not None or bool(self._parts)

    def is_in(self, layout: TensorLayout) -> bool:
        """Return whether the devices of a layout hold the parts that it gives them."""
        if self._layout is not None:
            return self._layout == layout
        found = [self._parts.get(device) for device in devices_of(layout.placement)]
        regions = regions_of(self.info.type.shape, layout)
        pairs = zip(found, regions, strict=True)
        return all(part is not None and part.region == region for part, region in pairs)

    def apart_from(self, devices: Collection[Device]) -> list[Device]:
        """Return the devices whose parts are in other memory than those of some devices."""
        if self._layout is not None and devices_of(self._layout.placement) == devices:
            return []
        memory = {id(self.parts[device]) for device in devices}
        return [device for device, part in self.parts.items() if id(part) not in memory]

    @property
    def local(self) -> list[Part]:
        return [part for part in self._parts.values() if part.array is not None]

    def state(self) -> Callable[[], None]:
        """Return a function that restores the parts, and where their values come from."""
        names = ("_parts", "_layout", "provisional", "blank", "first", "pristine")
        before = {name: getattr(self, name) for name in names} | {"_parts": dict(self._parts)}

        def restore() -> None:
            for name, value in before.items():
                setattr(self, name, value)

        return restore

    def settle(self, device: Device, region: Region) -> None:
        """Adopt the layout of the first job that requests a part on a device."""
        if not self.provisional:
            return
        self.provisional = False
        part = self.part(device)
        if part is not None and part.region == region:
            self.write()
            return
        if not self.blank:
            self.first, self.pristine = region_reader(self.numpy()), True
        self._drop_parts()

    def _drop_parts(self) -> None:
        self.parts.clear()
        self.blank = False

    def write(self) -> None:
        """Store the first values in parts that are blank; a collective operation, like `fill`."""
        if self.blank:
            for part in self.local:
                self.fill(part)
            self.blank = False

    def numpy(self) -> Any:
        """Return a copy of the logical value; a collective operation with several processes."""
        self.write()
        parts = self._distinct()
        if not parts:
            return self.initial_part(whole(self.info))
        if parts[-1].region == whole(self.info):
            return self._content(parts[-1])
        value = np.empty(self.info.type.shape, self.info.type.dtype.numpy)
        for part in reversed(parts):
            value[part.window] = self._content(part)
        return value

    def _distinct(self) -> list[Part]:
        """Return the first of the parts of each region, the last region first."""
        if self._layout is not None and not any(isinstance(s, Split) for s in self._layout.sbp):
            first = self._layout.placement.device(0)
            other = Part(whole(self.info), None, None, self._root(first))
            return [self._parts.get(first) or other]
        return list({part.region: part for part in reversed(self.parts.values())}.values())

    def _content(self, part: Part) -> Any:
        if self.world is None:
            return part.driver.copy_out(part.array)
        if part.array is None:
            value = np.empty(region_shape(part.region), self.info.type.dtype.numpy)
        else:
            value = part.driver.copy_out(part.array)
        self.world.broadcast(value, part.root, f"variable {self.info.name!r}")
        return value

    def fill(self, part: Part) -> None:
        """Store the initial value in a new part; each process generates only its own parts.

        This is a collective operation with several processes.  Values are generated in memory of
        the host in place.
        """
        host = part.array if isinstance(part.array, np.ndarray) else None
        value = self.initial_part(part.region, host)
        if value is not host:
            part.driver.copy_in(part.array, value)

    def initial_part(self, region: Region, out: Array | None = None) -> Any:
        """Return the initial value of a part, in ``out`` if it is generated and if that is given.

        This is a collective operation with several processes.
        """
        self.refresh()
        if self.first is not None:
            return self.first(region)
        for part in () if self.blank else self.local:
            if part.region == region:
                return part.driver.copy_out(part.array)
        return initial_value(self.info, region, out)

    def refresh(self) -> None:
        """Gather the value for new parts in all processes, unless ``first`` can read it."""
        if not self.pristine:
            self.first, self.pristine = region_reader(self.numpy()), True

    def forget_first(self) -> None:
        """Drop ``first`` once the parts hold the whole variable."""
        if self.is_whole:
            self.first, self.pristine = None, False

    def assign(self, value: Array) -> None:
        """Overwrite all parts from a host array of the logical shape."""
        self._fill(region_reader(value))
        self.forget_first()
        if self.first is not None:
            self.first = region_reader(value.copy())

    def load(self, read: ReadRegion) -> None:
        """Overwrite all parts: each process reads its own; parts added later are read then."""
        if self.provisional:
            self._drop_parts()
            self.provisional = False
        self._fill(read)
        if not self.has_parts or self.first is not None:
            self.first, self.pristine = read, True

    def reset(self) -> None:
        """Reset all local parts to their initial values."""
        self._fill(partial(initial_value, self.info))
        self.forget_first()

    def _fill(self, read: ReadRegion) -> None:
        for region in {part.region for part in self.local}:
            value = read(region)
            for part in self.local:
                if part.region == region:
                    part.driver.copy_in(part.array, value)
        self.blank = False

    @property
    def is_whole(self) -> bool:
        """Whether the parts hold the whole value: not if blank, or while a job creates them."""
        if self.blank or self._layout is not None:
            return not self.blank
        held = {part.region for part in self.parts.values()}
        filled = sum(num_elements(region_shape(r)) for r in held)
        return bool(held) and filled >= self.info.type.size


class HeldParts(Mapping[str, Mapping[Device, Region | None]]):
    """The regions of the parts of variables, read when they are needed."""

    def __init__(self, stored: Mapping[str, StoredVariable]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Mapping[Device, Region | None]:
        stored = self._stored[name]
        return {d: None if stored.provisional else p.region for d, p in stored.parts.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


@lru_cache(maxsize=16)
def own_ranks(
    placement: Placement, owner: Callable[[Device], int], rank: int, machines: int
) -> Sequence[int]:
    """Return the ranks of a placement whose devices belong to a process.

    Args:
        machines: the number of machines, on which the owners depend.
    """
    return [r for r, device in enumerate(devices_of(placement)) if owner(device) == rank]


def too_large(info: VariableInfo, device: Device, nbytes: int, available: str) -> OutOfMemoryError:
    """Return the error for a variable that does not fit into a device's memory."""
    error = OutOfMemoryError(
        f"allocating variable {info.name!r} of job {info.job!r} on {device}",
        at=info.line,
        found=f"{info.type}, of which this device would hold {nbytes:,} bytes",
        allowed=available,
        hint="make the variable smaller, or split it over more devices with "
        "distribute=flow.distribute.split(0)",
    )
    error.nbytes = nbytes
    return error


def two_layouts(
    info: VariableInfo, device: Device, held: Region, wanted: Region | None
) -> UnsupportedError:
    """Return the error for two jobs that request different parts of a variable on a device."""
    return UnsupportedError(
        f"variable {info.name!r}",
        at=info.line,
        found=f"regions {held} and {wanted} on {device}, requested by two jobs",
        allowed="the same layout of a shared variable in all jobs of a session",
        hint="give both jobs the same placement and distribution",
    )


def whole(info: VariableInfo) -> Region:
    """Return the region that covers a whole variable."""
    return tuple((0, n) for n in info.type.shape)


def window(region: Region) -> tuple[slice, ...]:
    """Return a region as slices of the logical variable."""
    return tuple(slice(low, high) for low, high in region)


def region_reader(value: Array) -> ReadRegion:
    """Return a function that returns regions of an array."""
    return lambda region: value[window(region)]


def initial_value(
    info: VariableInfo, region: Region | None = None, out: Array | None = None
) -> Array:
    """Return the initial value of a variable or of a region of it; the layout does not matter.

    Args:
        out: the array to generate the values in; None for a new one.
    """
    if info.values is not None:
        values = region_reader(info.values)(region or whole(info))
        if out is None:
            return np.array(values)
        out[...] = values
        return out
    seed = info.attrs.get("seed")
    return generate(
        info.attrs["initializer"],
        info.type.shape,
        info.type.dtype,
        op_seed(0 if seed is None else int(seed), info.name),
        region,
        out,
    )
