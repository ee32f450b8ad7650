"""The names of ``oneflow`` itself that the optional package flow-data provides."""

from flow_core.api.calls.published import publish as _publish
from flow_data.toplevel import *

_publish(globals())
