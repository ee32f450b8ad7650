"""The devices and machines that a program requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ResourceConfig:
    """The settings of ``flow.config``."""

    gpu_device_num: int | None = None
    cpu_device_num: int | None = None
    machine_num: int = 1
    others: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> ResourceConfig:
        """Return the settings that outlive a session: the machines and ``flow.env``."""
        of_process = {k: v for k, v in self.others.items() if k.startswith("env.")}
        return ResourceConfig(machine_num=self.machine_num, others=of_process)
