"""Plugin of the built-in checkpoint formats."""

from __future__ import annotations

from pathlib import Path

import pluggy

from flow_core.base.config import Settings
from flow_core.checkpoint import safetensors_format, safetensors_shards
from flow_core.checkpoint.store import SNAPSHOT
from flow_core.plugins.specs import FormatSpec

FLOW_PLUGIN_API = "1.0"
hookimpl = pluggy.HookimplMarker("flow")


def _is_torch_file(path: Path) -> bool:
    """Return whether a path is a file with one of the suffixes that users of torch choose."""
    return Path(path).suffix in (".pt", ".pth", ".bin", ".ckpt") and Path(path).is_file()


FORMATS: tuple[FormatSpec, ...] = (
    SNAPSHOT,
    FormatSpec(
        "safetensors",
        safetensors_format.can_open,
        reader="flow_core.checkpoint.safetensors_format:read",
        writer="flow_core.checkpoint.safetensors_format:write",
        file=safetensors_format.FILE,
    ),
    FormatSpec(
        "safetensors_shards",
        safetensors_shards.can_open,
        reader="flow_core.checkpoint.safetensors_shards:read",
    ),
    FormatSpec(
        "torch", _is_torch_file, reader="flow_core.checkpoint.torch_format:read", file="model.pt"
    ),
)


@hookimpl
def flow_register_checkpoint_formats(config: Settings) -> tuple[FormatSpec, ...]:
    """Return the specs of OneFlow's folder layout, of safetensors files and of torch's files."""
    return FORMATS
