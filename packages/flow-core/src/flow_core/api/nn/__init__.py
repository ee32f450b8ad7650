"""``flow.nn``: functions of neural networks, in six parts; ``flow.layers`` are in `layers`.

In: blobs.  Out: ops, and the variables of layers, in the job being traced.  This package must
not depend on `optim` or `compat`.

Args:
    data_format: "NCW", "NCHW" or "NCDHW" (channels first), or "NWC", "NHWC" or "NDHWC" (channels
        last).
    strides: distances in the input between adjacent outputs: one integer for all spatial axes, or
        one for each.
    dilations, dilation_rate: distances in the input between kernel elements: one integer for all
        spatial axes, or one for each; 1 by default.
    padding: "VALID" (no padding); "SAME_UPPER" or "SAME_LOWER" (padding to ceil(size / stride)
        outputs; if it is odd, the additional element comes after or before the input,
        respectively); "SAME" (the same as "SAME_LOWER"), in upper or lower case; one number for
        both sides of all spatial axes; a number or a pair (before, after) for each spatial axis; or
        one for every axis of the input, which must be (0, 0) for the batch and channel axes.
    groups: number of groups of channels and filters; group i of the filters reads only group i of
        the channels.
    reduction: "mean", "sum" or "none".
    epsilon, eps: added to the variance.
    noise_shape: not supported, as in OneFlow.
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
