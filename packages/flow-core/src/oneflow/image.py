"""``oneflow.image``: provided by the optional package flow-data."""

from oneflow._pieces import piece

with piece("image", "flow_data"):
    from flow_data.image import *
