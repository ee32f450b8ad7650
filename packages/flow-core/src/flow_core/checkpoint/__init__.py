"""Saved variables on disk: file formats, atomic saves, loading, and comparison with jobs.

In: arrays by name, and a path.  Out: a checkpoint on disk, or the arrays of a checkpoint.
This package must not depend on sessions or jobs.
"""

from flow_core.checkpoint.manager import CheckpointManager
from flow_core.checkpoint.snapshot import Snapshot, StoredVariable
from flow_core.checkpoint.store import load, match, open_path, save

__all__ = [
    "CheckpointManager", "Snapshot", "StoredVariable", "load", "match", "open_path", "save",
]  # fmt: skip
