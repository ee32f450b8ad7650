"""Plugin of the communicators (comms) that connect the devices of one process."""

from __future__ import annotations

from flow_core.base.config import Settings
from flow_core.plugins.specs import ANY_DEVICE_TYPE, CommSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_comms(config: Settings) -> tuple[CommSpec, ...]:
    """Return the comm of CPU and emulated devices, and the comm of all other device types."""
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
        CommSpec(
            "staged", (ANY_DEVICE_TYPE,), f"{module}:bootstrap", f"{module}:staged", priority=-100
        ),
    )
