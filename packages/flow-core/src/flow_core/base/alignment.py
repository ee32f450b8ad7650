"""The alignment of buffers: every address and offset that the framework chooses is a multiple."""

from __future__ import annotations

ALIGNMENT = 64
"""Bytes: a cache line, and a register of the widest vector instructions."""


def aligned(nbytes: int) -> int:
    """Round a size up to the next multiple of the alignment.

    >>> aligned(1), aligned(64), aligned(0)
    (64, 64, 0)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
