"""Plugin of the comm within one process."""

from __future__ import annotations

from flow_core.base.config import Settings
from flow_core.plugins.specs import CommSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_comms(config: Settings) -> tuple[CommSpec, ...]:
    """Return the comm of CPU devices and of emulated devices, if any."""
    types = ("cpu", "gpu") if config.emulate_gpus else ("cpu",)
    module = "flow_core.builtin.in_process"
    return (
        CommSpec(
            "in_process",
            types,
            f"{module}:bootstrap",
            f"{module}:InProcessComm",
            shares_memory=True,
        ),
    )
