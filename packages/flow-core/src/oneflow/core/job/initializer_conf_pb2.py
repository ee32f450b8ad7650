"""``oneflow.core.job.initializer_conf_pb2``: the type of initializers, for annotations."""

from flow_core.api.calls.published import publish as _publish
from flow_core.ir.initializers import Initializer as InitializerConf

__all__ = ["InitializerConf"]

_publish(globals())
