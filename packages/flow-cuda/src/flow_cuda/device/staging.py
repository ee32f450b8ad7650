"""Copies between host and device memory through pinned staging buffers."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.hardware import Hardware

SHARE = 1 << 20
"""The minimum number of bytes per thread of a host copy."""
HELPERS = min(4, os.cpu_count() or 1)
"""The number of threads that copy between a program's arrays and staging buffers: one core copies
slower than the bus of a GPU."""


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(HELPERS, "flow-cuda-staging")


def copy_bytes(target: Any, source: Any) -> None:
    """Copy host bytes; several threads copy large arrays."""
    parts = min(HELPERS, target.size // SHARE)
    if parts < 2:
        np.copyto(target, source)
        return
    tuple(_helpers().map(np.copyto, np.array_split(target, parts), np.array_split(source, parts)))


class Staging:
    """A copy stream and its pinned staging buffers.

    The host reads or writes a buffer only after the last copy through the buffer has completed.

    Args:
        stream: the stream for copies; default: a new stream.
    """

    def __init__(
        self, hardware: Hardware, name: str, chunk: int, stream: Any = None, slots: int = 2
    ) -> None:
        self._hardware, self._chunk, self._slots = hardware, chunk, slots
        self.stream = hardware.stream(name) if stream is None else stream
        self._pieces: list[Any] = []
        self._events: list[Any] = []
        self._next = 0

    def _free_slot(self) -> int:
        """Return a free buffer; wait for one if necessary.

        The first call allocates all buffers, so that no later copy allocates.
        """
        if not self._pieces:
            memory = self._hardware.pinned(self._chunk * self._slots)
            self._pieces = np.split(memory, self._slots)
            self._events = [None] * self._slots
        slot, self._next = self._next, (self._next + 1) % self._slots
        if self._events[slot] is not None:
            self._hardware.synchronize(self._events[slot])
        return slot

    def upload(self, target: int, source: Any) -> None:
        """Queue a copy of host bytes; the caller may change the source when this returns."""
        for start in range(0, source.size, self._chunk):
            part = source[start : start + self._chunk]
            slot = self._free_slot()
            piece = self._pieces[slot]
            address = piece.ctypes.data
            self._hardware.host_writes([(address, address + part.size)])
            copy_bytes(piece[: part.size], part)
            self._hardware.copy(self.stream, target + start, address, part.size)
            self._events[slot] = self._hardware.record(self.stream)

    def download(self, source: int, target: Any) -> None:
        """Copy device bytes to a host array and wait for completion."""
        waiting: list[tuple[int, int, int]] = []
        for start in range(0, target.size, self._chunk):
            size = min(self._chunk, target.size - start)
            if len(waiting) == self._slots:
                self._finish_download(target, *waiting.pop(0))
            slot = self._free_slot()
            address = self._pieces[slot].ctypes.data
            self._hardware.copy(self.stream, address, source + start, size)
            self._events[slot] = self._hardware.record(self.stream)
            waiting.append((slot, start, size))
        for piece in waiting:
            self._finish_download(target, *piece)

    def _finish_download(self, target: Any, slot: int, start: int, size: int) -> None:
        self._hardware.synchronize(self._events[slot])
        piece = self._pieces[slot]
        address = piece.ctypes.data
        self._hardware.host_reads([(address, address + size)])
        copy_bytes(target[start : start + size], piece[:size])


class HostCopies:
    """Copies between host and device arrays, synchronized with the compute stream.

    Args:
        chunk: size of a staging buffer in bytes; larger copies are split.
    """

    def __init__(self, hardware: Hardware, chunk: int) -> None:
        self._hardware = hardware
        self._to_device = Staging(hardware, "h2d", chunk)
        self._to_host = Staging(hardware, "d2h", chunk)

    def upload(self, target: DeviceArray, source: Any) -> None:
        """Copy a host array to the device, after all queued work that reads the old values.

        The source may change as soon as this returns; the copy itself may still be in progress.
        """
        host = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if not host.size:
            return
        hardware = self._hardware
        hardware.wait(self._to_device.stream, hardware.record(hardware.compute))
        self._to_device.upload(target.address, host)
        hardware.wait(hardware.compute, hardware.record(self._to_device.stream))

    def download(self, source: DeviceArray, target: Any) -> None:
        """Wait for all queued work, then copy a device array into a contiguous host array."""
        if source.nbytes:
            hardware = self._hardware
            hardware.wait(self._to_host.stream, hardware.record(hardware.compute))
            self._to_host.download(source.address, target.reshape(-1).view(np.uint8))
