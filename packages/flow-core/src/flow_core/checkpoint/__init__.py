"""Saved variables on disk: formats, atomic saves, loading, comparing.

This package knows arrays by name, no sessions.  `store` saves and loads through any registered
format, `snapshot` is OneFlow's folder layout, `safetensors_format` the second one, and `manager`
keeps a series of checkpoints in one folder.
"""

from flow_core.checkpoint.manager import CheckpointManager
from flow_core.checkpoint.snapshot import Snapshot, StoredVariable
from flow_core.checkpoint.store import load, match, open_path, save

__all__ = [
    "CheckpointManager",
    "Snapshot",
    "StoredVariable",
    "load",
    "match",
    "open_path",
    "save",
]
