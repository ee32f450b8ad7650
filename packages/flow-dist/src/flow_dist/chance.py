"""Chance that is the same in all processes, where the script seeds nothing.

All processes pass their inputs to jobs, and a script may compare what comes back with its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def follow_the_first(rank: int, gather: Callable[[Any], Sequence[Any]]) -> None:
    """All processes go on with the first one's states of `random` and ``numpy.random``.

    Where a script has seeded them alike, nothing changes.

    Args:
        rank: of this process.
        gather: gives every process what all of them pass, of JSON's kinds.
    """
    version, numbers, rest = random.getstate()
    kind, words, *counts = np.random.get_state()  # noqa: NPY002 - what scripts draw from
    own = [[version, numbers, rest], [kind, [int(word) for word in words], *counts]]
    ours, theirs = gather(own if rank == 0 else None)[0]
    if rank:
        random.setstate((ours[0], tuple(ours[1]), ours[2]))
        drawn = np.array(theirs[1], np.uint32)
        np.random.set_state((theirs[0], drawn, *theirs[2:]))  # noqa: NPY002
