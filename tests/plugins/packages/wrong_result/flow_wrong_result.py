"""Returns names where specs are wanted."""

FLOW_PLUGIN_API = "1.0"


def flow_register_ops():
    return ["cube"]
