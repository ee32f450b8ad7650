"""Plugin of the built-in checkpoint formats."""

from __future__ import annotations

import pluggy

from flow_core.base.config import Settings
from flow_core.checkpoint import safetensors_format
from flow_core.checkpoint.store import SNAPSHOT
from flow_core.plugins.specs import FormatSpec

FLOW_PLUGIN_API = "1.0"
hookimpl = pluggy.HookimplMarker("flow")

FORMATS: tuple[FormatSpec, ...] = (
    SNAPSHOT,
    FormatSpec(
        "safetensors",
        safetensors_format.can_open,
        reader="flow_core.checkpoint.safetensors_format:read",
        writer="flow_core.checkpoint.safetensors_format:write",
        file=safetensors_format.FILE,
    ),
)


@hookimpl
def flow_register_checkpoint_formats(config: Settings) -> tuple[FormatSpec, ...]:
    """Return the specs of OneFlow's folder layout and of safetensors files."""
    return FORMATS
