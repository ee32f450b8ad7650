"""``oneflow.detection``: provided by the optional package flow-data."""

from oneflow._pieces import piece

with piece("detection", "flow_data"):
    from flow_data.detection import *
