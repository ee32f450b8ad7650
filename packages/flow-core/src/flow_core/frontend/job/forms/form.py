"""A form of a job: the changes that were made to it, and what its plan takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from flow_core.compiler.request import Compiled
from flow_core.frontend.job.forms.table import Kind

Levels = tuple[int, ...]
"""The level of each kind of change of a form, in the order of `table.KINDS`."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a job that was compiled."""

    levels: Levels  # of its changes
    changes: tuple[str, ...]
    how: tuple[str, ...]  # what to write in the program
    kinds: tuple[Kind, ...]  # of its changes
    device: str  # the device that has the least free memory, as text
    nbytes: int  # the bytes that this device needs
    variables: int  # those of them that variables need
    limit: int | None  # the bytes that it has; None for no limit
    seconds: float  # the predicted time of a step, with all devices side by side
    busiest: float  # the part of it for which the busiest device computes
    fits: bool  # whether each device has enough memory
    price: float  # the factor on the price of memory with which its layouts were chosen
    work: int  # the nanoseconds that the budget counts for it
    stages: tuple[str, ...] = ()  # its stages of a pipeline in words
    # For all devices, if the form fits and was not beaten.
    compiled: Compiled | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The names of the changes, or "as it is"."""
        return ", ".join(self.changes) or "as it is"
