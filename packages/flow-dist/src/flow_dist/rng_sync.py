"""Chance that is the same in all processes, where the script seeds nothing.

All processes pass their inputs to jobs, and a script may compare what comes back with its own.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import bit_generator


class Entropy:
    """Where numpy takes the entropy of generators that are made without a seed.

    The main thread draws it from a generator whose state all processes share.  Other threads,
    which take turns differently in each process, and forked processes, which shall differ from
    one another, ask the system, as numpy does.

    Attributes:
        source: what the main thread draws from.
    """

    def __init__(self) -> None:
        self.source = random.Random()
        self._process = os.getpid()

    def __call__(self, bits: int) -> int:
        """An integer of so many random bits."""
        is_own = os.getpid() == self._process
        if is_own and threading.current_thread() is threading.main_thread():
            return self.source.getrandbits(bits)
        return secrets.randbits(bits)

    def install(self) -> None:
        """Makes numpy ask here: its module has no other place for this."""
        vars(bit_generator)["randbits"] = self


ENTROPY = Entropy()


def synchronize_seeds(secret: str) -> None:
    """All processes that pass the same text draw the same numbers from now on."""
    number = int.from_bytes(hashlib.sha256(b"chance " + secret.encode()).digest()[:4])
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - what scripts draw from
    ENTROPY.source.seed(f"entropy {secret}")
    ENTROPY.install()


def follow_the_first(rank: int, gather: Callable[[Any], Sequence[Any]]) -> None:
    """All processes go on with the first one's states of chance.

    These are of `random`, of ``numpy.random``, and of what numpy's generators get that are made
    without a seed.  Where a script has seeded them alike, nothing changes.

    Args:
        rank: of this process.
        gather: gives every process what all of them pass, of JSON's kinds.
    """
    kind, words, *counts = np.random.get_state()  # noqa: NPY002
    drawn = [kind, [int(word) for word in words], *counts]
    own = [random.getstate(), drawn, ENTROPY.source.getstate()]
    ours, (kind, words, *counts), entropy = gather(own if rank == 0 else None)[0]
    ENTROPY.install()
    if rank:
        random.setstate(_state(ours))
        np.random.set_state((kind, np.array(words, np.uint32), *counts))  # noqa: NPY002
        ENTROPY.source.setstate(_state(entropy))


def _state(told: Sequence[Any]) -> tuple[Any, ...]:
    """The state of a generator of `random`, which JSON has made lists of."""
    version, numbers, rest = told
    return version, tuple(numbers), rest
