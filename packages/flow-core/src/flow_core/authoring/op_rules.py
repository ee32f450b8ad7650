"""The API for op specs: ops as classes, and named inference and SBP rules."""

from flow_core.ops.declare import OpDef as OpDef
from flow_core.ops.declare import specs as specs
from flow_core.ops.rules import any_partial as any_partial
from flow_core.ops.rules import broadcast_sbp as broadcast_sbp
from flow_core.ops.rules import broadcast_type as broadcast_type
from flow_core.ops.rules import check_place as check_place
from flow_core.ops.rules import checked_axis as checked_axis
from flow_core.ops.rules import conv_work as conv_work
from flow_core.ops.rules import floating as floating
from flow_core.ops.rules import floating_like_input as floating_like_input
from flow_core.ops.rules import like_input as like_input
from flow_core.ops.rules import linear as linear
from flow_core.ops.rules import nondecreasing as nondecreasing
from flow_core.ops.rules import nonincreasing as nonincreasing
from flow_core.ops.rules import product_work as product_work
from flow_core.ops.rules import same_inputs as same_inputs
from flow_core.ops.rules import split_all_axes as split_all_axes
from flow_core.ops.rules import split_axes as split_axes
from flow_core.ops.rules import with_nondecreasing as with_nondecreasing
from flow_core.ops.rules import with_nonincreasing as with_nonincreasing
from flow_core.ops.rules import with_place as with_place
