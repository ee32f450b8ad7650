"""The memory of variables: parts on devices that together hold the logical value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from flow_core.base.arrays import Array, DeviceArray
from flow_core.base.errors import OutOfMemoryError
from flow_core.base.philox import op_seed
from flow_core.base.shapes import Shape, num_elements
from flow_core.device import Arena, World
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.initializers import generate
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Device

ReadRegion: TypeAlias = Callable[[Region], Array]
"""Returns the values of a region of a logical variable."""


@dataclass(slots=True)
class Part:
    """The part of a variable that one device holds.

    Attributes:
        region: its region of the logical variable.
        array: device array, None if another process owns the device.
        driver: driver of the device, None if another process owns the device.
        root: the rank of the device's process.
        arena: the memory of the array, None if another process owns the device.
    """

    region: Region
    array: DeviceArray | None
    driver: Any
    root: int = 0
    arena: Arena | None = None

    def view(self, shape: Shape | None) -> DeviceArray | None:
        """The array, in another shape if one is given."""
        if self.arena is None or self.array is None or shape in (None, self.array.shape):
            return self.array
        return self.arena.view(0, shape, self.array.dtype)

    @property
    def window(self) -> tuple[slice, ...]:
        """The part as slices of the logical variable."""
        return window(self.region)


@dataclass(slots=True)
class StoredVariable:
    """A variable's memory: parts on devices that together hold the logical value.

    Attributes:
        info: name, type and attributes.
        memory: the memory kind: the device type whose kernels can read it.
        parts: the parts by device.
        first: reads regions of the logical initial value, while some regions have no part.
        provisional: whether no job has requested it, so that its layout is unknown.
        world: the processes that hold its parts, None for one.
        pristine: whether all parts hold ``first``, or else the initial value; equal in all
            processes.
    """

    info: VariableInfo
    memory: str
    parts: dict[Device, Part] = field(default_factory=dict)
    first: ReadRegion | None = None
    provisional: bool = False
    world: World | None = None
    pristine: bool = True

    def settle(self, device: Device, region: Region) -> None:
        """Adopt the layout of the first job that requests a part on a device."""
        if self.provisional and (device not in self.parts or self.parts[device].region != region):
            self.first, self.pristine = region_reader(self.numpy()), True
            self.parts.clear()
        self.provisional = False

    def numpy(self) -> Any:
        """A copy of the logical value; collective with several processes."""
        parts = list({part.region: part for part in reversed(self.parts.values())}.values())
        if not parts:
            return self.initial_part(whole(self.info))
        if parts[-1].region == whole(self.info):
            return self._content(parts[-1])
        value = np.empty(self.info.type.shape, self.info.type.dtype.numpy)
        for part in reversed(parts):
            value[part.window] = self._content(part)
        return value

    def _content(self, part: Part) -> Any:
        """A copy of a part, in all processes."""
        if self.world is None:
            return part.driver.copy_out(part.array)
        if part.array is None:
            value = np.empty(region_shape(part.region), self.info.type.dtype.numpy)
        else:
            value = part.driver.copy_out(part.array)
        self.world.broadcast(value, part.root, f"variable {self.info.name!r}")
        return value

    def initial_part(self, region: Region) -> Any:
        """The initial value of a new part; each process generates only its own parts.

        Collective with several processes.
        """
        self.refresh()
        if self.first is not None:
            return self.first(region)
        for part in self.parts.values():
            if part.region == region and part.array is not None:
                return part.driver.copy_out(part.array)
        return initial_value(self.info, region)

    def refresh(self) -> None:
        """Gather the value for new parts in all processes, unless ``first`` has it."""
        if not self.pristine:
            self.first, self.pristine = region_reader(self.numpy()), True

    def forget_first(self) -> None:
        """Drop ``first`` once the parts hold everything."""
        if self.is_whole:
            self.first, self.pristine = None, False

    def assign(self, value: Array) -> None:
        """Overwrite all parts from a host array of the logical shape."""
        self._fill(region_reader(value))
        if self.first is not None:
            self.first = region_reader(value.copy())

    def load(self, read: ReadRegion) -> None:
        """Overwrite all parts, of which this process reads its own; later parts read theirs."""
        if self.provisional:
            self.parts.clear()
            self.provisional = False
        self._fill(read)
        if not self.parts or self.first is not None:
            self.first, self.pristine = read, True

    def reset(self) -> None:
        """Reset all local parts to their initial values."""
        self._fill(partial(initial_value, self.info))

    def _fill(self, read: ReadRegion) -> None:
        local = [part for part in self.parts.values() if part.array is not None]
        for region in {part.region for part in local}:
            value = read(region)
            for part in local:
                if part.region == region:
                    part.driver.copy_in(part.array, value)

    @property
    def is_whole(self) -> bool:
        """Whether the parts hold the whole value; not so while the first job creates them."""
        held = {part.region for part in self.parts.values()}
        filled = sum(num_elements(region_shape(r)) for r in held)
        return bool(held) and filled >= self.info.type.size


def too_large(info: VariableInfo, device: Device, nbytes: int, available: str) -> OutOfMemoryError:
    """The error for a variable that does not fit into a device's memory.

    Args:
        info: the variable.
        device: the device.
        nbytes: the bytes needed on the device.
        available: the memory that the device has, as text.
    """
    error = OutOfMemoryError(
        f"allocating variable {info.name!r} of job {info.job!r} on {device}",
        at=info.line,
        found=f"{info.type}, of which {nbytes:,} bytes are on that device",
        allowed=available,
        hint="make it smaller, or split it over more devices: distribute=flow.distribute.split(0)",
    )
    error.nbytes = nbytes
    return error


def whole(info: VariableInfo) -> Region:
    """The region of a whole variable."""
    return tuple((0, n) for n in info.type.shape)


def window(region: Region) -> tuple[slice, ...]:
    """A region as slices of the logical variable."""
    return tuple(slice(low, high) for low, high in region)


def region_reader(value: Array) -> ReadRegion:
    """A function that returns regions of an array."""
    return lambda region: value[window(region)]


def initial_value(info: VariableInfo, region: Region | None = None) -> Array:
    """The initial value of a variable, or of a part of it; independent of the layout."""
    seed = info.attrs.get("seed")
    return generate(
        info.attrs["initializer"],
        info.type.shape,
        info.type.dtype,
        op_seed(0 if seed is None else int(seed), info.name),
        region,
    )
