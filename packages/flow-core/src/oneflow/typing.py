"""``oneflow.typing``: provided by the optional package flow-typing."""

from flow_core.api.calls.published import publish as _publish
from oneflow._pieces import piece

with piece("typing", "flow_typing"):
    from flow_typing import *

_publish(globals())
