"""Registers an op that flow-cubes has."""

from flow_core.authoring.op_rules import like_input
from flow_core.authoring.specs import OpSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_ops():
    return [OpSpec("cube", ("x",), like_input)]
