"""Copies between the host's memory and a device's, through pieces of pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.hardware import Hardware


class Staging:
    """A stream for copies and the pinned memory that they go through.

    A piece is written or read by the host only when the last copy through it is done.

    Args:
        hardware: the device.
        name: of the stream.
        chunk: bytes of a piece.
        stream: where copies are queued; default: a stream of its own.
        slots: number of pieces.
    """

    def __init__(
        self, hardware: Hardware, name: str, chunk: int, stream: Any = None, slots: int = 2
    ) -> None:
        self._hardware, self._chunk, self._slots = hardware, chunk, slots
        self.stream = hardware.stream(name) if stream is None else stream
        self._pieces: list[Any] = []
        self._events: list[Any] = []
        self._next = 0

    def _slot(self) -> int:
        """A piece that nobody uses."""
        if len(self._pieces) < self._slots:
            self._pieces.append(self._hardware.pinned(self._chunk))
            self._events.append(None)
            return len(self._pieces) - 1
        slot, self._next = self._next, (self._next + 1) % self._slots
        if self._events[slot] is not None:
            self._hardware.synchronize(self._events[slot])
        return slot

    def upload(self, target: int, source: Any) -> None:
        """Queues a copy of bytes of the host; they may change when this returns."""
        for start in range(0, source.size, self._chunk):
            part = source[start : start + self._chunk]
            slot = self._slot()
            piece = self._pieces[slot]
            address = piece.ctypes.data
            self._hardware.host_writes([(address, address + part.size)])
            np.copyto(piece[: part.size], part)
            self._hardware.copy(self.stream, target + start, address, part.size)
            self._events[slot] = self._hardware.record(self.stream)

    def download(self, source: int, target: Any) -> None:
        """Copies bytes of the device into an array of the host, and waits for them."""
        waiting: list[tuple[int, int, int]] = []
        for start in range(0, target.size, self._chunk):
            size = min(self._chunk, target.size - start)
            if len(waiting) == self._slots:
                self._take(target, *waiting.pop(0))
            slot = self._slot()
            address = self._pieces[slot].ctypes.data
            self._hardware.copy(self.stream, address, source + start, size)
            self._events[slot] = self._hardware.record(self.stream)
            waiting.append((slot, start, size))
        for piece in waiting:
            self._take(target, *piece)

    def _take(self, target: Any, slot: int, start: int, size: int) -> None:
        self._hardware.synchronize(self._events[slot])
        piece = self._pieces[slot]
        address = piece.ctypes.data
        self._hardware.host_reads([(address, address + size)])
        np.copyto(target[start : start + size], piece[:size])


class Traffic:
    """Copies between arrays of the host and of a device, in line with what the device computes.

    Args:
        hardware: the device.
        chunk: bytes of a piece of pinned memory; larger copies are cut into such pieces.
    """

    def __init__(self, hardware: Hardware, chunk: int) -> None:
        self._hardware = hardware
        self._to = Staging(hardware, "h2d", chunk)
        self._back = Staging(hardware, "d2h", chunk)

    def bring(self, target: DeviceArray, source: Any) -> None:
        """Copies a host array to the device, behind all that computes with the old numbers.

        The source may change as soon as this returns; the copy itself may still be under way.
        """
        host = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if not host.size:
            return
        hardware = self._hardware
        hardware.wait(self._to.stream, hardware.record(hardware.compute))
        self._to.upload(target.address, host)
        hardware.wait(hardware.compute, hardware.record(self._to.stream))

    def fetch(self, source: DeviceArray, target: Any) -> None:
        """Fills a contiguous host array with the numbers that all queued work leaves."""
        if source.nbytes:
            hardware = self._hardware
            hardware.wait(self._back.stream, hardware.record(hardware.compute))
            self._back.download(source.address, target.reshape(-1).view(np.uint8))
