"""``oneflow.data``: provided by the optional package flow-data."""

from flow_core.api.calls.published import publish as _publish
from oneflow._pieces import piece

with piece("data", "flow_data"):
    from flow_data.namespace import *

from oneflow.data import augment as augment
from oneflow.data import datasets as datasets

_publish(globals())
