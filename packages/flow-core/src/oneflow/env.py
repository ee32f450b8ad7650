"""``oneflow.env``; see `flow_core.api.session.env`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_session import init_bootstrap_confs as init_bootstrap_confs
from flow_core.api.session.env import *

_publish(globals())
