"""``flow.nn``: functions of neural networks, in six parts; ``flow.layers`` are in `layers`.

In: blobs.  Out: ops, and the variables of layers, in the job being traced.  This package must
not depend on `optim` or `compat`.
"""

from __future__ import annotations

from flow_core.api.nn import activation, basic, conv, group_norms, losses, pool
from flow_core.api.nn.activation import *  # noqa: F403 - a star join, by __all__
from flow_core.api.nn.basic import *  # noqa: F403
from flow_core.api.nn.conv import *  # noqa: F403
from flow_core.api.nn.group_norms import *  # noqa: F403
from flow_core.api.nn.losses import *  # noqa: F403
from flow_core.api.nn.pool import *  # noqa: F403

__all__ = [
    *activation.__all__,
    *basic.__all__,
    *conv.__all__,
    *group_norms.__all__,
    *losses.__all__,
    *pool.__all__,
]
