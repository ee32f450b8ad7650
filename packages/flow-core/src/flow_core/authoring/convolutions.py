"""The API for convolutions in other forms than core's: their semantics, and sample cases."""

from flow_core.ops.nn.conv_reference import conv_reference as conv_reference
from flow_core.ops.nn.conv_reference import conv_samples as conv_samples
from flow_core.ops.nn.conv_reference import data_grad_reference as data_grad_reference
from flow_core.ops.nn.conv_reference import filter_grad_reference as filter_grad_reference
