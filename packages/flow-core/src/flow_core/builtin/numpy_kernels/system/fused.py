"""The kernel of fused groups of elementwise ops: it runs the members' kernels tile by tile.

A tile is a range of the leading axis, or of the flattened tensor if all shapes agree, and stays in
cache.  Intermediate results are in a few tile-sized slots of the workspace, which members reuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_core.base.errors import PlanError
from flow_core.base.shapes import num_elements
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.device import Launch
from flow_core.ir.graph import Attrs, TensorType, tensor_type
from flow_core.ops.system.fused import Member, decode
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load

TILE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The tiling of a group's index space: the shape of the space, and the rows per tile."""

    shape: tuple[int, ...]
    rows: int
    flat: bool
    itemsize: int

    def ranges(self) -> Iterator[tuple[int, int]]:
        total = self.shape[0] if self.shape else 1
        for start in range(0, total, self.rows):
            yield start, min(start + self.rows, total)

    def row_elements(self) -> int:
        return num_elements(self.shape[1:])


def _tiling(query: KernelQuery, members: Sequence[Member]) -> _Tiling:
    space = members[-1].result.shape
    flat = all(t.shape == space for t in (*query.inputs, *(m.result for m in members)))
    shape = (num_elements(space),) if flat else (space or (1,))
    widest = max(m.result.dtype.itemsize for m in members)
    row = max(1, num_elements(shape[1:])) * widest
    return _Tiling(shape, max(1, min(TILE_BYTES // row, max(shape[0], 1))), flat, widest)


def _slots(members: Sequence[Member], outputs: Sequence[int]) -> tuple[list[int | None], int]:
    """Assign a workspace slot to each member that is no output; reuse slots after the last read."""
    last = {r: i for i, m in enumerate(members) for r in m.refs if r >= 0}
    free: list[int] = []
    slots: list[int | None] = []
    count = 0
    for i, member in enumerate(members):
        if i in outputs:
            slots.append(None)
        else:
            if not free:
                free.append(count)
                count += 1
            slots.append(free.pop())
        for ref in set(member.refs):
            slot = slots[ref] if ref >= 0 else None
            if slot is not None and last[ref] == i:
                free.append(slot)
    return slots, count


def _slot_bytes(tiling: _Tiling) -> int:
    return aligned(tiling.rows * tiling.row_elements() * tiling.itemsize)


def _find(group: KernelQuery, member: KernelQuery) -> KernelSpec:
    if group.find is None:
        raise PlanError("binding a fused group", found="no registry to find its members' kernels")
    return group.find(member)


def _member_queries(query: KernelQuery, members: Sequence[Member]) -> Iterator[KernelQuery]:
    for m in members:
        types = tuple(members[r].result if r >= 0 else query.inputs[-1 - r] for r in m.refs)
        yield KernelQuery(m.type, Attrs(m.attrs), types, (m.result,))


def _tile_type(type_: TensorType, tiling: _Tiling) -> TensorType:
    """Return the type of a value's first tile, which is the largest tile."""
    if tiling.flat:
        return tensor_type((tiling.rows,), type_.dtype)
    shape = (1,) * (len(tiling.shape) - len(type_.shape)) + type_.shape
    whole = shape[0] == 1 != tiling.shape[0]
    return type_ if whole else tensor_type((tiling.rows, *shape[1:]), type_.dtype)


def _own_workspace(query: KernelQuery, members: Sequence[Member], tiling: _Tiling) -> int:
    """Return the bytes of workspace for a tile: the largest size that a member's kernel needs."""
    sizes = [0]
    for whole in _member_queries(query, members):
        inputs, outputs = (
            tuple(_tile_type(t, tiling) for t in types) for types in (whole.inputs, whole.outputs)
        )
        asked = replace(whole, inputs=inputs, outputs=outputs)
        found = _find(query, asked)
        sizes.append(found.workspace(asked) if found.workspace else 0)
    return max(sizes)


def _workspace(query: KernelQuery) -> int:
    members = list(decode(query.attrs["body"]))
    tiling = _tiling(query, members)
    _, count = _slots(members, query.attrs["outputs"])
    keep = len(query.attrs["outputs"]) * _slot_bytes(tiling)
    return count * _slot_bytes(tiling) + keep + _own_workspace(query, members, tiling)


def _bind(ctx: BindContext) -> Sequence[Launch]:
    members = list(decode(ctx.attrs["body"]))
    tiling = _tiling(ctx.query, members)
    if 0 in tiling.shape:
        return ()
    slots, count = _slots(members, ctx.attrs["outputs"])
    area = _slot_bytes(tiling)
    binder = _Binder(ctx, members, tiling, slots, area, count)
    launches: list[Launch] = []
    for start, stop in tiling.ranges():
        launches.extend(binder.tile(start, stop))
    return launches


@dataclass(frozen=True, slots=True)
class _Binder:
    """A helper that binds the members of one group to one tile after another."""

    ctx: BindContext
    members: Sequence[Member]
    tiling: _Tiling
    slots: Sequence[int | None]
    area: int
    count: int

    def tile(self, start: int, stop: int) -> Iterator[Launch]:
        outputs: Sequence[int] = self.ctx.attrs["outputs"]
        inputs = [self._cut(x, start, stop) for x in self.ctx.inputs]
        finals = {m: self._cut(self.ctx.outputs[k], start, stop) for k, m in enumerate(outputs)}
        results: list[Any] = []
        late: list[Launch] = []
        for i, member in enumerate(self.members):
            slot = self.slots[i]
            if slot is not None:
                target = self._slot(slot, finals, member, stop - start)
            elif self._overwrites_needed_input(i, finals[i], inputs):
                k = outputs.index(i)
                target = self._slot(self.count + k, finals, member, stop - start)
                late.append(partial(np.copyto, finals[i], target))
            else:
                target = finals[i]
            results.append(target)
            arguments = tuple(results[r] if r >= 0 else inputs[-1 - r] for r in member.refs)
            yield from self._bind_member(member, arguments, target)
        yield from late

    def _cut(self, array: Array, start: int, stop: int) -> Array:
        """Return the rows of an array that a tile uses; a broadcast leading axis stays whole."""
        if self.tiling.flat:
            return array.reshape(-1)[start:stop]
        shape = self.tiling.shape
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        return array if array.shape[0] == 1 != shape[0] else array[start:stop]

    def _slot(self, slot: int, _: object, member: Member, rows: int) -> Any:
        shape = (rows, *self.tiling.shape[1:])
        dtype = member.result.dtype.numpy
        size = num_elements(shape) * dtype.itemsize
        base = slot * self.area
        return self.ctx.workspace[base : base + size].view(dtype).reshape(shape)

    def _overwrites_needed_input(self, i: int, final: Array, inputs: Sequence[Array]) -> bool:
        """Return whether writing member i's result destroys an input that is still to be read."""
        needed = {r for m in self.members[i + 1 :] for r in m.refs if r < 0}
        own = [r for r in self.members[i].refs if r < 0 and r != self.members[i].refs[0]]
        return any(np.shares_memory(final, inputs[-1 - r]) for r in (*needed, *own))

    def _bind_member(
        self, member: Member, arguments: tuple[Array, ...], target: Array
    ) -> Sequence[Launch]:
        result = tensor_type(target.shape, member.result.dtype)
        types = tuple(tensor_type(a.shape, self._dtype(member, j)) for j, a in enumerate(arguments))
        query = KernelQuery(member.type, Attrs(member.attrs), types, (result,))
        found = _find(self.ctx.query, query)
        own = (self.count + len(self.ctx.attrs["outputs"])) * self.area
        size = found.workspace(query) if found.workspace else 0
        workspace = self.ctx.workspace[own : own + size] if found.workspace else None
        bound = load(found.load)(
            replace(self.ctx, query=query, inputs=arguments, outputs=(target,), workspace=workspace)
        )
        return bound if isinstance(bound, tuple | list) else (bound,)

    def _dtype(self, member: Member, j: int) -> Any:
        ref = member.refs[j]
        if ref >= 0:
            return self.members[ref].result.dtype
        return self.ctx.query.inputs[-1 - ref].dtype


KERNELS: tuple[KernelSpec, ...] = (kernel("fused", _bind, workspace=_workspace),)
