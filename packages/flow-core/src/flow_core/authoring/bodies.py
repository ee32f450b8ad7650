"""The API for the bodies of loops and branches, which are attributes of their ops."""

from flow_core.ops.control.bodies import body_graph as body_graph
from flow_core.passes.rewriting.bodies import body_types as body_types
