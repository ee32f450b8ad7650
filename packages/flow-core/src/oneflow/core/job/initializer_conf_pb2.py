"""``oneflow.core.job.initializer_conf_pb2``: the type of initializers, for annotations."""

from flow_core.ir.initializers import Initializer as InitializerConf

__all__ = ["InitializerConf"]
