"""Launches that call a C function, of which one call from Python runs several in order.

A call from Python takes about as long as a loop over a thousand numbers.  The driver therefore
joins consecutive launches: `flow_core.authoring.backends.Joinable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Loop
from flow_core.base.arrays import Array
from flow_onednn.binding import CData
from flow_onednn.native import compiler
from flow_onednn.native.thunks import member


def joined(calls: Sequence[Call]) -> Call:
    """Return a launch that runs launches in order in one call; an error is that of its launch."""
    at = compiler.ffi(compiler.CDEF).new("long *", len(calls))
    return call("run_calls", table(calls), len(calls), at, fail=partial(_fail, calls, at))


def repeated(loop: Loop) -> Call:
    """Return a launch that runs a loop in one call; see `Repeatable`."""
    make = compiler.ffi(compiler.CDEF)

    def pointer(kind: str, array: Array | None) -> CData:
        return make.NULL if array is None else make.cast(kind, array.ctypes.data)

    order = make.new("long[]", [loop.order.start, len(loop.order), loop.order.step])
    pairs = [*loop.elements, *loop.results[0], *loop.results[1]]
    rows = [(pointer("void *", a), pointer("char *", s), a.nbytes) for a, s in pairs]
    two = [joined(body) for body in loop.bodies]  # type: ignore[arg-type]  # they are calls
    return call(
        "run_positions", order, make.new("Element[]", rows), len(loop.elements),
        len(loop.results[0]), table(two), pointer("int64_t *", loop.step),
        pointer("int64_t *", loop.counter), fail=partial(_fail_loop, loop, two),
    )  # fmt: skip


def _fail_loop(loop: Loop, two: Sequence[Call], status: int) -> None:
    """Raise the error of a call of a loop, the only one whose body has not run to its end."""
    for body, one in zip(loop.bodies, two, strict=True):
        at = one.args[-1]
        if at[0] < len(body):
            _fail(body, at, status)  # type: ignore[arg-type]  # joined launches are calls


class Call(partial[Any]):
    """A launch that calls a C function with fixed arguments."""

    thunk: CData  # the C function that unpacks the arguments
    # Raises the error of a status that is not 0; None if the function returns nothing.
    fail: Callable[[int], object] | None
    slots: CData = None  # the arguments as a C array, once they are needed
    join = staticmethod(joined)
    repeat = staticmethod(repeated)


class CheckedCall(Call):
    """A launch that calls a C function whose status is an error unless it is 0."""

    def __call__(self) -> None:
        """Call the function, and raise the error of its status."""
        status = super().__call__()
        if status and self.fail is not None:
            self.fail(status)


def call(name: str, *arguments: Any, fail: Callable[[int], object] | None = None) -> Call:
    """Return a launch of a function of `compiler.CDEF`.

    Args:
        fail: raises the error of a status that is not 0; it can keep further objects alive.
    """
    native = compiler.native()
    made = (CheckedCall if fail else Call)(getattr(native, name), *arguments)
    made.thunk, made.fail = getattr(native, f"call_{name}"), fail
    return made


def table(calls: Sequence[Call]) -> CData:
    """Return the C array of calls, which must live as long as the array."""
    rows = compiler.ffi(compiler.CDEF).new("Call[]", len(calls))
    for row, one in zip(rows, calls, strict=True):
        row.run, row.arguments = one.thunk, _slots(one)
    return rows


def _slots(one: Call) -> CData:
    """Return the arguments of a call as a C array, which lives as long as the call."""
    if one.slots is None:
        make = compiler.ffi(compiler.CDEF)
        types = make.typeof(one.func).args
        one.slots = make.new("Slot[]", len(types))
        for slot, type_, value in zip(one.slots, types, one.args, strict=True):
            setattr(slot, member(type_.cname), value)
    return one.slots


def _fail(calls: Sequence[Call], at: CData, status: int) -> None:
    """Raise the error of a call; the runtime finds its task by the local variable ``launch``."""
    launch = calls[min(at[0], len(calls) - 1)]
    if launch.fail is not None:
        launch.fail(status)


def limited(one: Call, count: int) -> Call:
    """Return a launch that runs a call with another size of the thread pool."""
    return call("run_limited", table([one]), count, fail=partial(_fail_any, [one]))


CONVERTED = 1 << 13
"""Most float32 elements of a block of rows that `over_rows` converts; equals that of `calls.c`."""
FEW_ROWS = 64
"""Number of rows that loops over short rows process together."""


def over_rows(one: Call, counted: int, arrays: Mapping[int, tuple[Array, bool]]) -> Call:
    """Return a launch that runs a loop over float32 rows on arrays of which some are bfloat16.

    Args:
        counted: position of the argument that is the number of rows.
        arrays: the arrays that have these rows, and whether the loop writes them, by the position
            of the argument.
    """
    rows, make = one.args[counted], compiler.ffi(compiler.CDEF)
    converted = make.new("Rows[]", len(arrays))
    for row, (slot, (array, result)) in zip(converted, arrays.items(), strict=True):
        row.array, row.columns = make.cast("void *", array.ctypes.data), array.size // rows
        row.half, row.result, row.slot = array.dtype != np.float32, result, slot
    block = CONVERTED // sum(row.columns for row in converted if row.half)
    block -= block % FEW_ROWS if block > FEW_ROWS else 0
    return call(
        "run_rows", table([one]), converted, len(arrays), len(one.args), counted, rows, block,
        fail=partial(_fail_any, [one]),
    )  # fmt: skip


def choice(name: str, *arguments: Any, fast: Sequence[Any], exact: Sequence[Any]) -> Call:
    """Return a launch of a C function that runs one of two sequences of calls.

    Args:
        name: name of the function, whose last argument is the array of the two calls.
        arguments: its other arguments.
        fast, exact: the sequences of calls.
    """
    two = [joined(fast), joined(exact)]
    return call(name, *arguments, table(two), fail=partial(_fail_any, two))


def _fail_any(calls: Sequence[Call], status: int) -> None:
    """Raise the error of the first call, whose primitives the others run, too."""
    fail = calls[0].fail
    if fail is not None:
        fail(status)
