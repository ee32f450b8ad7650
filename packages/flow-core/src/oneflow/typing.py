"""``oneflow.typing``: provided by the optional package flow-typing."""

from oneflow._pieces import piece

with piece("typing", "flow_typing"):
    from flow_typing import *
