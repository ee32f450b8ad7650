"""The implementation of `flow_core.device.DeviceCopier` on a GPU, for communication backends."""

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
    Write,
    ZeroLaunch,
    call,
    space,
    strides,
)
from flow_cuda.kernels.move import UNSIGNED, bits_of, move_box

COMBINE_CODES = {"sum": 0, "max": 1, "min": 2}
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class ForeignLaunch(Queued):
    """Work that another library queues."""

    hardware: Hardware
    function: Callable[[int], object]  # called with the native stream handle
    name: str  # name for reports
    access: Access  # what the work reads and writes
    kept: tuple[Any, ...] = ()  # arrays that must stay alive as long as the launch

    @property
    def title(self) -> str:
        return self.name

    def queue(self, stream: Any) -> None:
        """Call the library to queue its work on a stream."""
        hardware = self.hardware
        handle = hardware.handle(stream)
        hardware.within(lambda: self.function(handle))

    def touched(self) -> Access:
        return self.access


@dataclass(frozen=True, slots=True)
class GpuCopier:
    """The `flow_core.device.DeviceCopier` of one device."""

    hardware: Hardware

    @property
    def place(self) -> str:
        """The UUID of the device."""
        return self.hardware.uuid()

    def scratch(self, nbytes: int) -> GpuArena:
        return GpuArena(nbytes, self.hardware.allocate(nbytes), self.hardware)

    def copy(self, target: Strided, source: Strided) -> Sequence[Launch]:
        """Return the copy of a box: a memory copy if both are contiguous, otherwise a kernel."""
        if not target.size:
            return ()
        if target.is_contiguous and source.is_contiguous:
            return (CopyLaunch(self.hardware, contiguous_array(target), contiguous_array(source)),)
        steps = (source.strides, target.strides)
        first = (source.offset, target.offset)
        return tuple(move_box(source.array, target.array, target.shape, steps, first))

    def combine(
        self, operation: str, target: Strided, parts: Sequence[Strided]
    ) -> Sequence[Launch]:
        """Return the reduction of boxes: one kernel per pair, so that rounding matches NumPy."""
        if not target.size:
            return ()
        return tuple(_combine_pairwise(COMBINE_CODES[operation], target, parts))

    def fill(self, target: Strided, value: Any) -> Sequence[Launch]:
        if not target.size:
            return ()
        array, kind = contiguous_array(target), UNSIGNED[int(target.dtype.itemsize)]
        bits = bits_of(value, array.dtype)
        if bits == 0:
            return (ZeroLaunch(self.hardware, array),)
        size = array.size
        made = call("fill", "move.h", (kind,), Write(array, kind), size, Bits(bits), items=size)
        return (made,)

    def foreign(
        self,
        call: Callable[[int], object],
        name: str,
        reads: Sequence[Strided],
        writes: Sequence[Strided],
    ) -> Launch:
        """Return a launch of work that another library queues."""
        access = Access(tuple(map(_span, reads)), tuple(map(_span, writes)))
        kept = tuple(box.array for box in (*reads, *writes))
        return ForeignLaunch(self.hardware, call, name, access, kept)

    def stream(self) -> int:
        """Return the native handle of the compute stream."""
        return self.hardware.handle(self.hardware.compute)

    def within(self, call: Callable[[], Result]) -> Result:
        found: Result = self.hardware.within(call)
        return found


def contiguous_array(box: Strided) -> DeviceArray:
    """Return a contiguous box as an array."""
    array: DeviceArray = box.array
    return array.part(box.offset * array.itemsize, (box.size,), array.dtype)


def _span(box: Strided) -> Span:
    return contiguous_array(box).span


def _combine_pairwise(how: int, target: Strided, parts: Sequence[Strided]) -> Iterator[Launch]:
    """Yield launches that combine the first two parts into the target, then each further part."""
    kind = C_TYPES[as_dtype(target.dtype).name]
    left = parts[0]
    for right in parts[1:]:
        boxes = [
            box.reshape(-1) if _all_contiguous(left, right, target) else box
            for box in (left, right, target)
        ]
        where = [x for box in boxes for x in (Struct("Strides", strides(box.strides)), box.offset)]
        yield call(
            "combine", "boxes.h", (kind,), Read(left.array), Read(right.array),
            Write(target.array, kind), how, Struct("Space", space(boxes[0].shape)), *where,
            items=prod(boxes[0].shape),
        )  # fmt: skip
        left = target


def _all_contiguous(*boxes: Strided) -> bool:
    return all(box.is_contiguous for box in boxes)
