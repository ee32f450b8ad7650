"""The gradient rules of the core's ops match finite differences of the references."""

from __future__ import annotations

import pytest

from flow_core.testing import Gap, GradientKit

pytestmark = pytest.mark.arithmetic

SECOND = "second derivatives are not implemented"
SECONDS = (
    "clip_by_scalar_grad", "clip_by_scalar_max_grad", "clip_by_scalar_min_grad", "ctc_loss_grad",
    "elu_grad", "gelu_grad", "hardsigmoid_grad", "hardswish_grad", "hardtanh_grad",
    "l2_normalize_grad", "layer_norm_gamma_grad", "layer_norm_grad", "layer_norm_param_grad",
    "gru_grad", "leaky_relu_grad", "log_softmax_grad", "lstm_grad", "max_pool_1d_grad",
    "max_pool_2d_grad", "max_pool_3d_grad", "normalization_grad", "prelu_input_grad",
    "reduce_prod_grad",
    "reflection_pad2d_grad", "relu_grad", "sigmoid_cross_entropy_grad", "sigmoid_grad",
    "smooth_l1_loss_grad", "softmax_cross_entropy_grad", "softmax_grad",
    "sparse_cross_entropy_grad", "sparse_softmax_cross_entropy_grad", "tanh_grad",
)  # fmt: skip
SCHEDULE = "computes a learning rate, or changes gradients before an update"
LABEL = "labels are data, as in OneFlow"
OBSERVED = "what is observed is taken as given, as in OneFlow"
STATISTIC = "moving statistics are no parameters"


class TestGradients(GradientKit):
    plugin = "core.ops"
    gaps = (Gap("python_kernel", "never", "a function of a program", ("gradient",)),)
    no_gradient = {  # noqa: RUF012 - declared by the kit and never changed
        **dict.fromkeys(SECONDS, SECOND),
        "digamma": SECOND,
        "unique_with_counts": "how many distinct values there are jumps",
        "distributed_partial_fc_sample_grad": SECOND,
        "min_max_observer": OBSERVED,
        "dequantize_linear": "grids follow from ranges, and are not trained",
        "moving_average_min_max_observer": OBSERVED,
        "bernoulli": "a draw does not depend on its probability smoothly",
        "adam_bias_correction_learning_rate": SCHEDULE,
        "global_norm_clip_factor": SCHEDULE,
        "indexed_slices_reduce_sum": SCHEDULE,
        "l1_l2_regularize_gradient": SCHEDULE,
        "sigmoid_cross_entropy.label": LABEL,
        "smooth_l1_loss.label": LABEL,
        "softmax_cross_entropy.label": LABEL,
        "normalization.moving_mean": STATISTIC,
        "normalization.moving_variance": STATISTIC,
    }
