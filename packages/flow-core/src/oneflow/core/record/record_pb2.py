"""``oneflow.core.record.record_pb2``: provided by the optional package flow-data."""

from flow_core.api.calls.published import publish as _publish
from oneflow._pieces import piece

with piece("core.record.record_pb2", "flow_data"):
    from flow_data.messages import *

_publish(globals())
