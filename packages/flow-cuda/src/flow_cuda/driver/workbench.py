"""What comms of other packages may do on a device: `flow_core.device.Workbench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

from flow_core.authoring.backends import Launch, Strided
from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.program import C_TYPES
from flow_cuda.device.arrays import DeviceArray, GpuArena
from flow_cuda.device.hardware import Access, Hardware, Span
from flow_cuda.device.launch import (
    Bits,
    CopyLaunch,
    Queued,
    Read,
    Struct,
    Written,
    ZeroLaunch,
    call,
    space,
    strides,
)
from flow_cuda.kernels.move import UNSIGNED, bits_of, moved

HOW = {"sum": 0, "max": 1, "min": 2}
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class ForeignLaunch(Queued):
    """Work that another library queues.

    Attributes:
        hardware: the device.
        function: gets the handle of the stream.
        name: for reports.
        access: what it touches.
        kept: arrays that must outlive it.
    """

    hardware: Hardware
    function: Callable[[int], object]
    name: str
    access: Access
    kept: tuple[Any, ...] = ()

    def queue(self, stream: Any) -> None:
        """Has the library queue its work on a stream."""
        hardware = self.hardware
        handle = hardware.handle(stream)
        hardware.within(lambda: self.function(handle))

    def touched(self) -> Access:
        """What it was said to touch."""
        return self.access


@dataclass(frozen=True, slots=True)
class GpuWorkbench:
    """`flow_core.device.Workbench` of one device."""

    hardware: Hardware

    @property
    def place(self) -> str:
        """The UUID of the device."""
        return self.hardware.uuid()

    def scratch(self, nbytes: int) -> GpuArena:
        """New memory."""
        return GpuArena(nbytes, self.hardware.allocate(nbytes), self.hardware)

    def copy(self, target: Strided, source: Strided) -> Sequence[Launch]:
        """Copies a box: plainly where both follow each other in memory, else by a kernel."""
        if not target.size:
            return ()
        if target.is_contiguous and source.is_contiguous:
            return (CopyLaunch(self.hardware, row_of(target), row_of(source)),)
        steps = (source.strides, target.strides)
        first = (source.offset, target.offset)
        return tuple(moved(source.array, target.array, target.shape, steps, first))

    def combine(
        self, operation: str, target: Strided, parts: Sequence[Strided]
    ) -> Sequence[Launch]:
        """A kernel per part but one, so that each sum is rounded as numpy's."""
        if not target.size:
            return ()
        return tuple(_combined(HOW[operation], target, parts))

    def fill(self, target: Strided, value: Any) -> Sequence[Launch]:
        """Fills a box that is all in a row."""
        if not target.size:
            return ()
        array, kind = row_of(target), UNSIGNED[int(target.dtype.itemsize)]
        bits = bits_of(value, array.dtype)
        if bits == 0:
            return (ZeroLaunch(self.hardware, array),)
        size = array.size
        made = call("fill", "move.h", (kind,), Written(array, kind), size, Bits(bits), items=size)
        return (made,)

    def foreign(
        self,
        call: Callable[[int], object],
        name: str,
        reads: Sequence[Strided],
        writes: Sequence[Strided],
    ) -> Launch:
        """Work of another library."""
        access = Access(tuple(map(_span, reads)), tuple(map(_span, writes)))
        kept = tuple(box.array for box in (*reads, *writes))
        return ForeignLaunch(self.hardware, call, name, access, kept)

    def stream(self) -> int:
        """The handle of the compute stream."""
        return self.hardware.handle(self.hardware.compute)

    def within(self, call: Callable[[], Result]) -> Result:
        """Calls with the device as the current one."""
        found: Result = self.hardware.within(call)
        return found


def row_of(box: Strided) -> DeviceArray:
    """A box that is all in a row, as an array of its own."""
    array: DeviceArray = box.array
    return array.part(box.offset * array.itemsize, (box.size,), array.dtype)


def _span(box: Strided) -> Span:
    return row_of(box).span


def _combined(how: int, target: Strided, parts: Sequence[Strided]) -> Iterator[Launch]:
    """The first two into the target, then each further one."""
    kind = C_TYPES[as_dtype(target.dtype).name]
    left = parts[0]
    for right in parts[1:]:
        boxes = [
            box.reshape(-1) if _all_rows(left, right, target) else box
            for box in (left, right, target)
        ]
        where = [x for box in boxes for x in (Struct("Strides", strides(box.strides)), box.offset)]
        yield call(
            "combine", "boxes.h", (kind,), Read(left.array), Read(right.array),
            Written(target.array, kind), how, Struct("Space", space(boxes[0].shape)), *where,
            items=prod(boxes[0].shape),
        )  # fmt: skip
        left = target


def _all_rows(*boxes: Strided) -> bool:
    return all(box.is_contiguous for box in boxes)
