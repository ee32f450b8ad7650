"""Two passes that each want to be first."""

from flow_core.authoring.specs import PassSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_passes():
    return [
        PassSpec("chicken", "logical", "flow_cyclic_order:Pass", before=("egg",)),
        PassSpec("egg", "logical", "flow_cyclic_order:Pass", before=("chicken",)),
    ]
