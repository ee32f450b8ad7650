"""``oneflow.data``: provided by the optional package flow-data."""

from oneflow._pieces import piece

with piece("data", "flow_data"):
    from flow_data import *
