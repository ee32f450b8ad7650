"""``flow.nn``: functions of neural networks, in four parts."""

from __future__ import annotations

from flow_core.api import nn_activation, nn_basic, nn_conv, nn_losses
from flow_core.api.nn_activation import *  # noqa: F403 - a star join, by __all__
from flow_core.api.nn_basic import *  # noqa: F403
from flow_core.api.nn_conv import *  # noqa: F403
from flow_core.api.nn_losses import *  # noqa: F403

__all__ = [*nn_activation.__all__, *nn_basic.__all__, *nn_conv.__all__, *nn_losses.__all__]
