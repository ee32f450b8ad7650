"""The API for convolutions in other forms than core's: their semantics, and sample cases."""

from flow_core.ops.nn.conv_reference import (
    conv_reference as conv_reference,
    conv_samples as conv_samples,
    data_grad_reference as data_grad_reference,
    filter_grad_reference as filter_grad_reference,
)
