"""Merge kernel launches of one kind into one launch, such as the updates of all variables.

The arguments of each original launch form a row of a table in device memory. A block derives its
row from its block index, and shares the row's array with the other blocks of that row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_cuda.codegen.program import Kernel, make_kernel
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.hardware import Access, Hardware
from flow_cuda.device.launch import Arguments, KernelLaunch, MergeableCall, Queued

ITEMS = 4
"""The number of elements per thread; it is above 1 so that small arrays need few blocks."""
MAX_BLOCKS = 512


def merge_launches(launches: Sequence[Launch]) -> list[Launch]:
    """Merge launches of the same kind; a merged launch takes the position of the first one.

    A launch is moved forward only past launches that access none of the same memory.
    """
    groups: list[list[Launch]] = []
    for launch in launches:
        index = _group_index(groups, launch)
        if index is None:
            groups.append([launch])
        else:
            groups[index].append(launch)
    return [_merge(group) if len(group) > 1 else group[0] for group in groups]


def _group_index(groups: Sequence[list[Launch]], launch: Launch) -> int | None:
    """Return the index of the group that a launch can join, or None."""
    if not isinstance(launch, KernelLaunch) or launch.shared is None:
        return None
    for index in range(len(groups) - 1, -1, -1):
        group = groups[index]
        if _same_kernel(group[0], launch) and not any(_conflict(x, launch) for x in group):
            return index
        if any(_conflict(other, launch) for other in group):
            return None
    return None


def _same_kernel(first: Launch, launch: KernelLaunch) -> bool:
    return (
        isinstance(first, KernelLaunch)
        and first.shared is not None
        and first.function.kernel == launch.function.kernel
        and first.hardware is launch.hardware
    )


def _conflict(a: Launch, b: KernelLaunch) -> bool:
    """Whether the order of two launches matters; a host call conflicts with every launch."""
    if not isinstance(a, Queued):
        return True
    touched = a.touched()
    return _writes_overlap(touched, b.access) or _writes_overlap(b.access, touched)


def _writes_overlap(a: Access, b: Access) -> bool:
    return any(x[0] < y[1] and y[0] < x[1] for x in a.writes for y in (*b.reads, *b.writes))


def _merge(group: Sequence[Any]) -> KernelLaunch:
    """Merge launches of the same kind into one."""
    hardware, shared = group[0].hardware, group[0].shared
    blocks = [_blocks(launch) for launch in group]
    starts = [0, *accumulate(blocks)]
    rows = [[start, *_packed_words(launch)] for start, launch in zip(starts, group, strict=False)]
    table = _upload(hardware, np.array(rows, np.uint64))
    kernel = batch_kernel(shared)
    values = (table, len(group))
    access = Access(
        tuple(span for launch in group for span in launch.access.reads),
        tuple(span for launch in group for span in launch.access.writes),
    )
    numbers = {id(n): n for launch in group for n in launch.numbers}
    return KernelLaunch(
        hardware,
        hardware.function(kernel),
        starts[-1],
        hardware.threads,
        Arguments(kernel, values),
        Access((*access.reads, table.span), access.writes),
        (table, *group),
        tuple(numbers.values()),
    )


def _blocks(launch: Any) -> int:
    items: int = launch.shared.items
    if launch.shared.blocks:
        return min(items, MAX_BLOCKS)
    per_block: int = ITEMS * launch.hardware.threads
    return max(1, min(-(-items // per_block), MAX_BLOCKS))


def _packed_words(launch: Any) -> Iterator[int]:
    """Yield the packed arguments of a launch as 8-byte integers."""
    for kept in launch.arguments.packed:
        yield from np.frombuffer(bytes(kept).ljust(8, b"\0"), np.uint64).tolist()


def batch_kernel(shared: MergeableCall) -> Kernel:
    """Return the kernel that makes one call for each row of a table."""
    at, given = 1, []
    own = "part" if shared.blocks else "threads_of(part)"
    for kind in shared.kinds:
        given.append(_argument(kind, at))
        at += _SIZES.get(kind, 1)
    body = (
        f"const u64 *row = row_of_block(table, rows, {at});\n"
        f"Part part = part_of_block(row, {at}, rows, table);\n"
        f"{shared.function}({', '.join(given)}, {own});"
    )
    stem = f"many_{shared.function.partition('<')[0]}"
    parameters = (("const u64 *", "table"), ("i64", "rows"))
    return make_kernel(stem, parameters, body, shared.headers, barriers=shared.blocks)


_SIZES = {"Terms": 4}
"""The sizes of structs in 8-byte words."""


def _argument(kind: str, at: int) -> str:
    """Return the C++ expression that reads an argument from a row."""
    if kind.endswith("*"):
        return f"({kind})row[{at}]"
    if kind in _SIZES:
        return f"*(const {kind} *)(row + {at})"
    return f"bits_as<{kind}>(row[{at}])"


def _upload(hardware: Hardware, values: Any) -> DeviceArray:
    memory = hardware.allocate(values.nbytes)
    array = DeviceArray(memory, memory.address, values.shape, values.dtype, hardware)
    pinned = hardware.pinned(values.nbytes)
    pinned[:] = values.reshape(-1).view(np.uint8)
    stream = hardware.compute
    hardware.copy(stream, array.address, pinned.ctypes.data, values.nbytes)
    hardware.synchronize(hardware.record(stream))
    return array
