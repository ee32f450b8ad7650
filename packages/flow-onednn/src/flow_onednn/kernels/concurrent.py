"""Concurrent execution of single-threaded primitives, each on one thread of an OpenMP region.

A primitive that runs inside a parallel region does not start any threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from flow_core.authoring.backends import Launch
from flow_onednn.library import Library, library, state
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import BoundPrimitive, Primitive, raise_failure, void_pointer


def supported() -> bool:
    """Return whether OpenMP threads of C loops can execute primitives of the library."""
    found = state()
    return isinstance(found, Library) and found.shares_pool and compiler.available()


def concurrent_launch(
    name: str, parts: Sequence[BoundPrimitive], *arguments: Any, primitive: Primitive
) -> Launch:
    """Return a launch that runs bound primitives concurrently.

    Args:
        name: name of a function of `native/partitions.c`.
        parts: bound primitives, each of which was created for one thread.
        arguments: the arguments of the function that follow the primitives.
        primitive: the primitive that error messages name.
    """
    one = library()
    table = compiler.ffi(compiler.CDEF).new("Part[]", len(parts))
    for row, part in zip(table, parts, strict=True):
        row.primitive, row.arguments = void_pointer(part.primitive), void_pointer(part.arguments)
        row.count = part.count
    common = (void_pointer(one.lib.dnnl_primitive_execute), void_pointer(one.stream))
    fail = partial(raise_failure, primitive, parts)
    return call(name, *common, table, len(parts), *arguments, fail=fail)
