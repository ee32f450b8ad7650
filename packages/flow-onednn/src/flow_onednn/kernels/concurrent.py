"""Concurrent execution of single-threaded primitives, each on one thread of an OpenMP region.

A primitive that runs inside a parallel region does not start any threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flow_core.authoring.backends import Launch
from flow_onednn.library import Library, library, state
from flow_onednn.native import compiler
from flow_onednn.primitives import BoundPrimitive, Primitive, raise_failure


def supported() -> bool:
    """Return whether OpenMP threads of C loops can execute primitives of the library."""
    found = state()
    return isinstance(found, Library) and found.shares_pool and compiler.available()


def concurrent_launch(
    make_call: Callable[..., Callable[[], int]],
    primitive: Primitive,
    parts: Sequence[BoundPrimitive],
) -> Launch:
    """Return a launch that runs bound primitives concurrently.

    Args:
        make_call: takes the arguments ``run, stream, parts, count`` and returns a callable that
            calls a function of `native/partitions.c` with them.
        primitive: the primitive that error messages name.
        parts: bound primitives, each of which was created for one thread.
    """
    one = library()
    table = compiler.ffi(compiler.CDEF).new("Part[]", len(parts))
    for row, part in zip(table, parts, strict=True):
        row.primitive, row.arguments = void_pointer(part.primitive), void_pointer(part.arguments)
        row.count = part.count
    common = (void_pointer(one.lib.dnnl_primitive_execute), void_pointer(one.stream))
    return _checked(make_call(*common, table, len(parts)), primitive, parts)


def void_pointer(pointer: Any) -> Any:
    """Convert a pointer from the library's cffi declarations to those of the C loops."""
    number = int(library().ffi.cast("uintptr_t", pointer))
    return compiler.ffi(compiler.CDEF).cast("void *", number)


def _checked(call: Callable[[], int], primitive: Primitive, kept: object) -> Launch:
    """Return a launch that raises an error on failure and keeps the bound primitives alive."""

    def run(keep: object = kept) -> None:
        status = call()
        if status:
            raise_failure(primitive, status)

    return run
