"""``oneflow.detection``: provided by the optional package flow-data."""

from flow_core.api.calls.published import publish as _publish
from oneflow._pieces import piece

with piece("detection", "flow_data"):
    from flow_data.detection import *

_publish(globals())
