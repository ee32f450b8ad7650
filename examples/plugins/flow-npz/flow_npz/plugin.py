"""The records that the plugin registers."""

from pathlib import Path

from flow_core.authoring.specs import FormatSpec

FLOW_PLUGIN_API = "1.0"
FILE = "weights.npz"


def can_open(path):
    """Return whether a path is an ``.npz`` file, or a folder with the file that `write` creates."""
    path = Path(path)
    return (path / FILE).is_file() or (path.suffix == ".npz" and path.is_file())


def flow_register_checkpoint_formats():
    """Return the checkpoint format."""
    return [FormatSpec("npz", can_open, "flow_npz.files:read", "flow_npz.files:write", FILE)]
