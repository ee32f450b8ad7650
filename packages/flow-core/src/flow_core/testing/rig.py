"""A test rig that binds one kernel, on any device, to buffers surrounded by guard bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.base.alignment import ALIGNMENT, aligned
from flow_core.base.arrays import Array
from flow_core.base.dtypes import uint8
from flow_core.device import Driver, Launch
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load

POISONS = (0xA5, 0x5A)
"""The bytes that fill uninitialized memory: as floating point values, one is tiny, one huge."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The location of a buffer in the arena."""

    name: str
    offset: int
    type: TensorType

    @property
    def bytes(self) -> slice:
        """The range of the buffer's bytes in an image of the arena."""
        return slice(self.offset, self.offset + self.type.nbytes)

    def read(self, image: Array) -> Array:
        """Copy the buffer's contents from an image of the arena."""
        raw = image[self.bytes].copy()
        return raw.view(self.type.dtype.numpy).reshape(self.type.shape)


class Rig:
    """A kernel, bound as in a plan: all buffers are in one arena, and inputs are not yet written.

    Every buffer is surrounded by at least `ALIGNMENT` guard bytes, and the workspace has exactly
    the size that the kernel requested.

    >>> from flow_core.builtin.numpy_driver import NumpyDriver
    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.sharding.topology import Device
    >>> import functools
    >>> def bind(ctx):
    ...     return functools.partial(np.negative, *ctx.inputs, *ctx.outputs)
    >>> t = tensor_type((3,), float32)
    >>> rig = Rig(
    ...     NumpyDriver(Device("cpu", 0, 0)),
    ...     KernelSpec("negative", "cpu", bind),
    ...     KernelQuery("negative", {}, (t,), (t,)),
    ... )
    >>> rig.outputs(rig.run([np.float32([1, 2, 3])]))
    (array([-1., -2., -3.], dtype=float32),)
    """

    def __init__(
        self,
        driver: Driver,
        kernel: KernelSpec,
        asked: KernelQuery,  # the kernel query, which is the op with its types
        *,
        mutates: Collection[int] = (),  # inputs that may be written
        inplace: int | None = None,  # the input whose memory output 0 shares, or None
        # Number of elements by which buffers are offset from their alignment, as in tiles.
        shift: int = 0,
        # Inputs of one element, bound as a view of stride 0 (host memory only).
        stretch: Collection[int] = (),
        # Inputs bound as host arrays, see `flow_core.plugins.specs.DeviceSpec.host_numbers`.
        host: Collection[int] = (),
        seed: int = 0,  # seed and step of random ops
        step: int = 0,
    ) -> None:
        self.driver, self.kernel, self.asked = driver, kernel, asked
        self._shift, self._end = shift, ALIGNMENT
        self._stretch = stretch
        self._host = {
            i: np.empty(t.shape, t.dtype.numpy) for i, t in enumerate(asked.inputs) if i in host
        }
        self._inputs = [self._input(i, t) for i, t in enumerate(asked.inputs)]
        self._outputs = [self._slot(f"output {i}", t) for i, t in enumerate(asked.outputs)]
        if inplace is not None:
            shared = self._inputs[inplace].offset
            self._outputs[0] = Slot(f"output 0 (input {inplace})", shared, asked.outputs[0])
        self._workspace = self._workspace_slot()
        self._results = [*self._outputs, *(self._inputs[i] for i in mutates)]
        self._arena = driver.allocate(self._end)
        self._whole = self._arena.view(0, (self._end,), np.uint8)
        self._stream = driver.stream("kit")
        self._allocated = 0
        self.launch = self._bound(seed, step)

    def _slot(self, name: str, type_: TensorType) -> Slot:
        start = self._end + self._shift * type_.dtype.itemsize
        self._end = aligned(start + type_.nbytes) + ALIGNMENT
        return Slot(name, start, type_)

    def _input(self, index: int, type_: TensorType) -> Slot:
        stored = tensor_type((1,), type_.dtype) if index in self._stretch else type_
        return self._slot(f"input {index}", stored)

    def _workspace_slot(self) -> Slot | None:
        if self.kernel.workspace is None:
            return None
        shift, self._shift = self._shift, 0  # workspaces are aligned, even those of tiles
        slot = self._slot("the workspace", tensor_type((self.kernel.workspace(self.asked),), uint8))
        self._shift = shift
        return slot

    def _array(self, slot: Slot | None) -> Any:
        if slot is None:
            return None
        return self._arena.view(slot.offset, slot.type.shape, slot.type.dtype.numpy)

    def _input_array(self, index: int) -> Any:
        if index in self._host:
            return self._host[index]
        array = self._array(self._inputs[index])
        if index not in self._stretch:
            return array
        return np.broadcast_to(array, self.asked.inputs[index].shape)

    def _bound(self, seed: int, step: int) -> Launch:
        context = BindContext(
            query=self.asked,
            inputs=tuple(map(self._input_array, range(len(self._inputs)))),
            outputs=tuple(map(self._array, self._outputs)),
            workspace=self._array(self._workspace),
            step=np.array(step, np.int64),
            seed=seed,
            stream=self._stream,
        )
        bound = load(self.kernel.load)(context)
        return self.driver.compile(bound if isinstance(bound, tuple | list) else (bound,))

    def run(self, arrays: Sequence[Array], poison: int = POISONS[0]) -> Any:
        """Launch once on host arrays; all other memory is filled with a poison byte.

        Returns:
            The image of the arena after the launch.

        Raises:
            AssertionError: the launch wrote outside of the outputs, workspace and mutated inputs.
        """
        before = np.full(self._end, poison, np.uint8)
        for slot, array in zip(self._inputs, arrays, strict=True):
            stored = np.ascontiguousarray(array).reshape(-1)[: slot.type.size]
            before[slot.bytes] = stored.view(np.uint8)
        for index, number in self._host.items():
            np.copyto(number, arrays[index])
        self.driver.copy_in(self._whole, before)
        allocated = self.driver.allocations() or 0
        self.launch()
        self._stream.synchronize()
        self._allocated = (self.driver.allocations() or 0) - allocated
        after = self.driver.copy_out(self._whole)
        self._check_rest(before, after)
        return after

    def outputs(self, image: Array) -> tuple[Array, ...]:
        """Return the outputs in an image of the arena."""
        return tuple(slot.read(image) for slot in self._outputs)

    def results(self, image: Array) -> tuple[Array, ...]:
        """Return the outputs and the mutated inputs in an image of the arena."""
        return tuple(slot.read(image) for slot in self._results)

    def check(
        self, given: Sequence[Sequence[Array]], repeatable: bool = True
    ) -> list[tuple[Array, ...]]:
        """Launch on each of the given inputs, and again on the first with another poison byte.

        Returns:
            The results of each launch.

        Raises:
            AssertionError: a launch fails as described for `run`; or, if ``repeatable``, the
                results of the first and the last launch are not bitwise equal; or the last launch
                allocates, on a device whose driver counts allocations.
        """
        images = [self.run(arrays) for arrays in given] + [self.run(given[0], POISONS[1])]
        first, last = images[0], images[-1]
        assert not self._allocated, (
            f"{self.kernel.name} allocates {self._allocated} times in its last launch: put "
            "temporaries into the workspace"
        )
        for slot in self._results if repeatable else ():
            same = np.array_equal(first[slot.bytes], last[slot.bytes])
            assert same, (
                f"{self.kernel.name}: two launches on the same inputs give {slot.name} =\n"
                f"{slot.read(first)}\nand\n{slot.read(last)}\n"
                "(the kernel read uninitialized memory, or state of an earlier launch)"
            )
        return list(map(self.results, images))

    def _writable(self) -> Iterator[Slot]:
        yield from self._results
        if self._workspace is not None:
            yield self._workspace

    def _check_rest(self, before: Array, after: Array) -> None:
        changed = before != after
        for slot in self._writable():
            changed[slot.bytes] = False
        where = np.flatnonzero(changed)
        assert not where.size, f"{self.kernel.name} wrote {self._place(int(where[0]))}"

    def _place(self, offset: int) -> str:
        slots = [*self._inputs, *self._writable()]
        for slot in slots:
            if slot.offset <= offset < slot.bytes.stop:
                return f"{slot.name}, which must not change"
        nearest = min(slots, key=lambda s: min(abs(s.offset - offset), abs(s.bytes.stop - offset)))
        if offset < nearest.offset:
            return f"{nearest.offset - offset} bytes before {nearest.name}"
        return f"{offset - nearest.bytes.stop + 1} bytes past the end of {nearest.name}"
