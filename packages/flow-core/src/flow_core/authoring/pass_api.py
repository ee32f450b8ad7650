"""The API for passes: options, the rewriter, decomposition, and rewrites that need kernels."""

from flow_core.passes.base import Pass as Pass
from flow_core.passes.base import PassContext as PassContext
from flow_core.passes.options import option as option
from flow_core.passes.rewriting.decomposition import Parts as Parts
from flow_core.passes.rewriting.decomposition import Rule as Rule
from flow_core.passes.rewriting.decomposition import cast_to as cast_to
from flow_core.passes.rewriting.decomposition import decompose as decompose
from flow_core.passes.rewriting.decomposition import emit_with_sbp as emit_with_sbp
from flow_core.passes.rewriting.decomposition import with_sbp as with_sbp
from flow_core.passes.rewriting.derived_values import (
    constants_of_variables as constants_of_variables,
)
from flow_core.passes.rewriting.rewriter import KernelRewriter as KernelRewriter
from flow_core.passes.rewriting.rewriter import Rewriter as Rewriter
from flow_core.passes.rewriting.rewriter import like_op as like_op
