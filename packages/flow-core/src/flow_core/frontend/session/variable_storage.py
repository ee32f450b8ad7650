"""The memory of variables: parts on devices that together hold all of a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.base.arrays import Array, DeviceArray
from flow_core.base.errors import OutOfMemoryError
from flow_core.base.philox import op_seed
from flow_core.base.shapes import num_elements
from flow_core.device import World
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.initializers import generate
from flow_core.sharding.sbp import Region, region_shape


@dataclass(slots=True)
class Part:
    """The part of a variable that one device holds.

    Attributes:
        region: where it lies in the logical variable.
        array: device array, None where the device is another process's.
        driver: driver of the device, None where it is another process's.
        root: the rank of the device's process.
    """

    region: Region
    array: DeviceArray
    driver: Any
    root: int = 0

    @property
    def window(self) -> tuple[slice, ...]:
        """The part as slices of the logical variable."""
        return window(self.region)


@dataclass(slots=True)
class StoredVariable:
    """A variable's memory: parts on devices that together hold all of it.

    Attributes:
        info: what the jobs agreed on.
        memory: kind of memory: the device type whose kernels can read it.
        parts: per device, by its text form.
        first: the logical value to begin with, while there are regions that no part holds yet.
        provisional: whether no job has asked for it yet, so that its layout is not known.
        world: the processes that hold its parts, None for one.
        pristine: whether all parts hold what ``first``, or else the initial value, says; the same
            in all processes.
    """

    info: VariableInfo
    memory: str
    parts: dict[str, Part] = field(default_factory=dict)
    first: Any = None
    provisional: bool = False
    world: World | None = None
    pristine: bool = True

    def settle(self, device: str, region: Region) -> None:
        """Takes the layout of the first job that asks: for a part on a device."""
        if self.provisional and (device not in self.parts or self.parts[device].region != region):
            self.first, self.pristine = self.numpy(), True
            self.parts.clear()
        self.provisional = False

    def numpy(self) -> Any:
        """A copy of the logical value; with several processes, all of them must ask for it."""
        parts = list({part.region: part for part in reversed(self.parts.values())}.values())
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

    def beginning(self, region: Region) -> Any:
        """What a new part begins with: no process makes more of an initial value than its own.

        With several processes, all of them must ask for a part of one of them.
        """
        self.refresh()
        if self.first is not None:
            return self.first[window(region)]
        for part in self.parts.values():
            if part.region == region and part.array is not None:
                return part.driver.copy_out(part.array)
        return initial_value(self.info, region)

    def refresh(self) -> None:
        """Fetches the value for new parts, in all processes, where it is not that of ``first``."""
        if not self.pristine:
            self.first, self.pristine = self.numpy(), True

    def forget_first(self) -> None:
        """Forgets what new parts begin with, as all of it is held."""
        if self.is_whole:
            self.first, self.pristine = None, False

    def assign(self, value: Array) -> None:
        """Overwrites all parts with those of a host array of the logical shape."""
        for part in self.parts.values():
            if part.array is not None:
                part.driver.copy_in(part.array, value[part.window])
        if self.first is not None:
            self.first[...] = value

    def begin_again(self) -> None:
        """Gives all parts their initial values, each by itself."""
        local = [part for part in self.parts.values() if part.array is not None]
        for region in {part.region for part in local}:
            value = initial_value(self.info, region)
            for part in local:
                if part.region == region:
                    part.driver.copy_in(part.array, value)

    @property
    def is_whole(self) -> bool:
        """Whether the parts hold all of it; they do not while the first job makes them."""
        held = {part.region for part in self.parts.values()}
        filled = sum(num_elements(region_shape(r)) for r in held)
        return bool(held) and filled >= self.info.type.size


def too_large(info: VariableInfo, device: str, nbytes: int, there: str) -> OutOfMemoryError:
    """The error of a variable for which a device has no room.

    Args:
        info: the variable.
        device: the device.
        nbytes: bytes that it would take there.
        there: what the device has, for people.
    """
    error = OutOfMemoryError(
        f"allocating variable {info.name!r} of job {info.job!r} on {device}",
        at=info.line,
        found=f"{info.type}, of which {nbytes:,} bytes lie on that device",
        allowed=there,
        hint="make it smaller, or split it over more devices: distribute=flow.distribute.split(0)",
    )
    error.nbytes = nbytes
    return error


def whole(info: VariableInfo) -> Region:
    """The region that is all of a variable."""
    return tuple((0, n) for n in info.type.shape)


def window(region: Region) -> tuple[slice, ...]:
    """A region as slices of the logical variable."""
    return tuple(slice(low, high) for low, high in region)


def initial_value(info: VariableInfo, region: Region | None = None) -> Array:
    """The initial value of a variable, or of a part of it: the same whatever the layout."""
    seed = info.attrs.get("seed")
    return generate(
        info.attrs["initializer"],
        info.type.shape,
        info.type.dtype,
        op_seed(0 if seed is None else int(seed), info.name),
        region,
    )
