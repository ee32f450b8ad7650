"""A plugin that registers one thing and then fails."""

from flow_core.authoring.op_rules import like_input
from flow_core.authoring.specs import OpSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_ops():
    return [OpSpec("half_registered", ("x",), like_input)]


def flow_register_kernels():
    raise RuntimeError("no cube today")
