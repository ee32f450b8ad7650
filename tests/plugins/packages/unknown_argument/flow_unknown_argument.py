"""Asks for an argument that the hook does not have."""

FLOW_PLUGIN_API = "1.0"


def flow_register_ops(config, session):
    return []
