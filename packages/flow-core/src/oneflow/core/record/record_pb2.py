"""``oneflow.core.record.record_pb2``: provided by the optional package flow-data."""

from oneflow._pieces import piece

with piece("core.record.record_pb2", "flow_data"):
    from flow_data.messages import *
