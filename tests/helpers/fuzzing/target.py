"""A format under test: inputs that the program makes, how they are mutated, what reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzing.mutations import Mutation, mutate_bytes, splice


@dataclass(frozen=True)
class Target:
    """A format.

    Attributes:
        name: as reports and commands have it.
        seeds: makes valid inputs; called once per process.
        open: prepares a reader in an empty folder; the reader takes an input and the number of
            its case, and raises a `FlowError` where it refuses the input.
        mutate: changes a seed.
        weight: share of the cases of a full run.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    open: Callable[[Path], Callable[[bytes, int], object]]
    mutate: Mutation = mutate_bytes
    weight: float = 1.0

    def case(self, seeds: Sequence[bytes], seed: int, number: int) -> bytes:
        """The input of a case, which follows from target, seed and number."""
        rng = random.Random(f"{self.name}/{seed}/{number}")
        if len(seeds) > 1 and rng.random() < 0.05:
            return splice(seeds, rng)
        return self.mutate(rng.choice(seeds), rng)
