"""A form of a job: the changes that were made to it, and what its plan takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from flow_core.compiler.request import Compiled
from flow_core.frontend.job.forms.table import Kind

Levels = tuple[int, ...]
"""The level of each kind of change of a form, in the order of `table.KINDS`."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a job that was compiled.

    Attributes:
        levels: the levels of its changes.
        changes: the names of its changes.
        how: what to write in the program.
        kinds: the kinds of its changes.
        device: the device that has the least free memory, as text.
        nbytes: the bytes that this device needs.
        variables: those of them that variables need.
        limit: the bytes that it has; None for no limit.
        seconds: the predicted time of a step, with all devices side by side.
        busiest: the part of it for which the busiest device computes.
        fits: whether each device has enough memory.
        price: the factor on the price of memory with which its layouts were chosen.
        work: the nanoseconds that the budget counts for it.
        stages: its stages of a pipeline in words.
        compiled: the compiled job for all devices, if the form fits and was not beaten.
    """

    levels: Levels
    changes: tuple[str, ...]
    how: tuple[str, ...]
    kinds: tuple[Kind, ...]
    device: str
    nbytes: int
    variables: int
    limit: int | None
    seconds: float
    busiest: float
    fits: bool
    price: float
    work: int
    stages: tuple[str, ...] = ()
    compiled: Compiled | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The names of the changes, or "as it is"."""
        return ", ".join(self.changes) or "as it is"
