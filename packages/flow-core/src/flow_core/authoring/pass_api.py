"""The API for passes: options, the rewriter, decomposition, and rewrites that need kernels."""

from flow_core.passes.base import Pass as Pass, PassContext as PassContext
from flow_core.passes.options import option as option
from flow_core.passes.rewriting.decomposition import (
    Parts as Parts,
    Rule as Rule,
    cast_to as cast_to,
    decompose as decompose,
    emit_with_sbp as emit_with_sbp,
    with_sbp as with_sbp,
)
from flow_core.passes.rewriting.derived_values import (
    constants_of_variables as constants_of_variables,
)
from flow_core.passes.rewriting.rewriter import (
    KernelRewriter as KernelRewriter,
    Rewriter as Rewriter,
    like_op as like_op,
)
