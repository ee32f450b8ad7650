"""Saved variables on disk: file formats, atomic saves, loading, and comparison with jobs.

In: arrays by name, and a path.  Out: a checkpoint on disk, or the arrays of a checkpoint.
This package must not depend on sessions or jobs.
"""

from flow_core.checkpoint.manager import CheckpointManager as CheckpointManager
from flow_core.checkpoint.snapshot import Snapshot as Snapshot
from flow_core.checkpoint.snapshot import StoredVariable as StoredVariable
from flow_core.checkpoint.store import load as load
from flow_core.checkpoint.store import match as match
from flow_core.checkpoint.store import open_path as open_path
from flow_core.checkpoint.store import save as save
