"""The alignment of buffers: every address and offset that the framework chooses is a multiple.

A device type may need a larger one: `flow_core.plugins.specs.DeviceSpec.alignment`.
"""

from __future__ import annotations

ALIGNMENT = 64
"""Bytes: a cache line, and a register of the widest vector instructions."""


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to the next multiple of the alignment.

    >>> aligned(1), aligned(64), aligned(0), aligned(65, 256)
    (64, 64, 0, 256)
    """
    return -(-nbytes // alignment) * alignment
