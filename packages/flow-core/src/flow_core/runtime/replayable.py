"""An executable whose steps can run again from the same variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.runtime.executable import Executable


class ReplayableExecutable(Executable):
    """A loaded plan of which values can be read on the host, and variables can be set back."""

    sync_always: ClassVar[bool] = True

    def is_local_number(self, buffer: int) -> bool:
        """Return whether this process holds a buffer, and the buffer holds numbers."""
        found = self.plan.buffers[buffer]
        return found.device in self._local and not found.type.dtype.is_object

    def host(self, buffer: int) -> Array:
        """Return what a buffer holds, on the host."""
        device = self.plan.buffers[buffer].memory
        return np.asarray(self._driver(device).copy_out(self._arrays[buffer]))

    def variables(self) -> dict[int, Array]:
        """Return copies of the variables that this process holds, by buffer."""
        own = filter(self.is_local_number, self.plan.variables.values())
        return {i: self.host(i).copy() for i in own}

    def restore(self, before: Mapping[int, Array], step: int) -> None:
        """Set the variables and the step number to those before a step."""
        for i, array in before.items():
            self._driver(self.plan.buffers[i].memory).copy_in(self._arrays[i], array)
        self.step[...] = step
