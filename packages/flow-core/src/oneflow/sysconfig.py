"""``oneflow.sysconfig``; see `flow_core.api.compat.unsupported` and
`flow_core.api.compat.later_session`.
"""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_session import (
    has_rpc_backend_grpc as has_rpc_backend_grpc,
    has_rpc_backend_local as has_rpc_backend_local,
    with_cuda as with_cuda,
    with_xla as with_xla,
)
from flow_core.api.compat.unsupported import (
    get_compile_flags as get_compile_flags,
    get_include as get_include,
    get_lib as get_lib,
    get_link_flags as get_link_flags,
)

_publish(globals())
