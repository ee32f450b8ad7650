"""A plugin of a later time."""

FLOW_PLUGIN_API = "2.1"


def flow_register_ops():
    raise SystemExit("hooks of a plugin of another major must not be called")
