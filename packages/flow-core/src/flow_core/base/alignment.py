"""The alignment of buffers, of which every address and offset that flow chooses is a multiple.

A device type may require a larger alignment: `flow_core.plugins.specs.DeviceSpec.alignment`.
"""

from __future__ import annotations

ALIGNMENT = 64
"""Alignment in bytes: the size of a cache line, and of the widest vector register."""


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to the next multiple of the alignment.

    >>> aligned(1), aligned(64), aligned(0), aligned(65, 256)
    (64, 64, 0, 256)
    """
    return -(-nbytes // alignment) * alignment
