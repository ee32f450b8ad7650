"""The API for op specs: ops as classes, and named inference and SBP rules."""

from flow_core.ops.declare import OpDef as OpDef, specs as specs
from flow_core.ops.rules import (
    any_partial as any_partial,
    broadcast_sbp as broadcast_sbp,
    broadcast_type as broadcast_type,
    check_place as check_place,
    checked_axis as checked_axis,
    conv_work as conv_work,
    floating as floating,
    floating_like_input as floating_like_input,
    like_input as like_input,
    linear as linear,
    nondecreasing as nondecreasing,
    nonincreasing as nonincreasing,
    product_work as product_work,
    same_inputs as same_inputs,
    split_all_axes as split_all_axes,
    split_axes as split_axes,
    with_nondecreasing as with_nondecreasing,
    with_nonincreasing as with_nonincreasing,
    with_place as with_place,
)
