"""The records that the plugin registers."""

from flow_core.authoring.specs import PassSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_passes():
    """Return the pass, which runs before equal ops are merged."""
    return [
        PassSpec("square", "lower", "flow_square.passes:Square", before=("common_subexpressions",))
    ]
