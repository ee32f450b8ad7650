"""Pauses of Python's cyclic garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause cyclic garbage collection for a ``with`` block.

    Compilation creates many long-lived objects and hardly any reference cycles; with repeated
    collections, its time would grow faster than the size of the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
