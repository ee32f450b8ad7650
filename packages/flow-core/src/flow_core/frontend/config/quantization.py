"""Settings of quantization, in training and after it."""

from __future__ import annotations

from flow_core.frontend.config.function_config import (
    OBSERVE,
    QAT,
    RANGES,
    STOP_MOVING,
    FunctionConfig,
    first_set,
)
from flow_core.passes.quantization.post_training import Ranges
from flow_core.passes.quantization.training_aware import QuantizationAware


def quantization(config: FunctionConfig, step: str | None) -> QuantizationAware | None:
    """Return the pass of quantization-aware training, None if that training is off.

    Args:
        step: name of the variable that counts the steps of a train job.
    """
    if first_set(config, list(QAT)) is not True:
        return None
    per_channel = "qat.per_channel_weight_quantization"
    return QuantizationAware(
        step=step,
        symmetric=config.get("qat.symmetric"),
        per_channel=config.is_set(per_channel) and config.get(per_channel),
        momentum=config.get("qat.moving_min_max_momentum"),
        stop_after=config.get(STOP_MOVING),
    )


def calibrated_ranges(config: FunctionConfig) -> Ranges | None:
    """Return the ranges of post-training quantization; None without it, empty to observe them."""
    found = config.get(RANGES)
    if found is None or found == OBSERVE:
        return None if found is None else {}
    return {name: (low, high) for name, low, high in found}
