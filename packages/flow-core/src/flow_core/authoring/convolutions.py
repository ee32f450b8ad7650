"""The API for convolutions in other forms than core's: their semantics, and sample cases."""

from flow_core.ops.nn.conv_reference import (
    conv_reference,
    conv_samples,
    data_grad_reference,
    filter_grad_reference,
)

__all__ = ["conv_reference", "conv_samples", "data_grad_reference", "filter_grad_reference"]
