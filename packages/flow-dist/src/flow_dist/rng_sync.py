"""Synchronize random number generators over all processes, for scripts that do not seed them.

Every process feeds the inputs that its script generates to the same jobs, and the script may
compare the results with its inputs, so all processes must generate the same inputs.
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
    """The entropy source of numpy's generators that are created without a seed.

    The main thread draws from a generator whose state is equal in all processes.  Other threads,
    which are scheduled differently in each process, and forked children, which must differ from
    each other, use the system's entropy, as numpy does.
    """

    def __init__(self) -> None:
        self.source = random.Random()  # the generator of the main thread
        self._process = os.getpid()

    def __call__(self, bits: int) -> int:
        """Return an integer of random bits."""
        is_own = os.getpid() == self._process
        if is_own and threading.current_thread() is threading.main_thread():
            return self.source.getrandbits(bits)
        return secrets.randbits(bits)

    def install(self) -> None:
        """Replace numpy's entropy function, for which numpy has no setting."""
        vars(bit_generator)["randbits"] = self


ENTROPY = Entropy()


def synchronize_seeds(secret: str) -> None:
    """Seed all generators, so that processes with the same secret draw the same numbers."""
    number = int.from_bytes(hashlib.sha256(b"chance " + secret.encode()).digest()[:4])
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - used by scripts
    ENTROPY.source.seed(f"entropy {secret}")
    ENTROPY.install()


def adopt_rank_0_state(rank: int, gather: Callable[[Any], Sequence[Any]]) -> None:
    """Copy rank 0's generator states to all processes.

    The states belong to `random`, ``numpy.random`` and `Entropy`.  If the script has seeded the
    generators equally in all processes, nothing changes.

    Args:
        gather: all-gathers a JSON value over all processes.
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


def _state(decoded: Sequence[Any]) -> tuple[Any, ...]:
    """Convert the lists that JSON has decoded to the state that `random` expects."""
    version, numbers, rest = decoded
    return version, tuple(numbers), rest
