"""``oneflow.optimizer``; see `flow_core.api.optim.optimizer`."""

from flow_core.api.optim.combined import *
from flow_core.api.optim.optimizer import *
