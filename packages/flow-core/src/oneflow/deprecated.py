"""``oneflow.deprecated``: older names of functions, which still work."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_session import (
    delete_worker_by_bootstrap,
    delete_worker_of_multi_process,
)
from flow_core.api.compat.unsupported import delete_worker, init_worker
from flow_core.api.session.scope import namespace as variable_scope

__all__ = [
    "delete_worker", "delete_worker_by_bootstrap", "delete_worker_of_multi_process", "init_worker",
    "variable_scope",
]  # fmt: skip

_publish(globals())
